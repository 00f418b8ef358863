"""A user's own text: files or their lines as documents, and JSON Lines records."""

import codecs
import json
import os
from collections.abc import Iterator
from pathlib import Path

from kanawa.config import REQUIRED
from kanawa.errors import did_you_mean

from kanawa_runtime.data.corpus import Corpus, Document, read_bytes
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.file_patterns import matching_files

#: Marks at the start of files that other encodings leave.
_OTHER_MARKS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}


class FileCorpus(Corpus):
    """What corpora of a user's files share: patterns, and names relative to a root."""

    class Config(Corpus.Config):
        #: Where the files lie says nothing about them: their content is pinned by the corpus's digest.
        PLACEMENT = ("root",)

        #: Globs, absolute or relative to `root`; `**` crosses folders, a folder means all below it. Each must match.
        files: tuple[str, ...] = REQUIRED
        #: Names, and so the split, are relative to this folder: moving it as a whole changes nothing.
        root: str = "."

    def paths(self) -> list[tuple[str, Path]]:
        """Returns (name, path) of every file once, by name; raises CorpusError for a fruitless glob."""
        root = Path(self.config.root)
        named = {
            Path(os.path.relpath(file, root)).as_posix(): file
            for pattern in self.config.files
            for file in matching_files(root, pattern)
        }
        once: dict[str, tuple[str, Path]] = {}
        for name, file in sorted(named.items()):
            # A file under two names, through a link, could be in both splits: training on what is held out.
            once.setdefault(os.path.realpath(file), (name, file))
        return sorted(once.values())

    def describe(self) -> str:
        """Returns the corpus's kind with its patterns."""
        return f"the corpus of {', '.join(self.config.files)}"


class TextFiles(FileCorpus):
    """UTF-8 text files, each a document, or each line that isn't blank a document."""

    class Config(FileCorpus.Config):
        split_lines: bool = False

    def read(self) -> Iterator[Document]:
        """Yields documents named by path, or `path:line` counting from 1."""
        for name, path in self.paths():
            data = read_text(path)
            if not self.config.split_lines:
                # What is blank teaches nothing, and held out it has no bytes to divide by.
                if data.strip():
                    yield Document(name, data)
                continue
            for number, line in enumerate(data.splitlines(), 1):
                if line.strip():
                    yield Document(f"{name}:{number}", line)


class JsonLines(FileCorpus):
    """JSON Lines files: one object a line, whose `field` holds the text of a document."""

    class Config(FileCorpus.Config):
        field: str = "text"

    def read(self) -> Iterator[Document]:
        """Yields documents named `path:line`; raises CorpusError that names a bad record's line."""
        for name, path in self.paths():
            # Bytes end lines at CR and LF alone; str.splitlines would also cut at U+2028, which JSON may hold as it is.
            for number, line in enumerate(read_text(path).splitlines(), 1):
                if not line.strip():
                    continue
                text = self._text(line, f"{path}:{number}")
                if text.strip():
                    yield Document(f"{name}:{number}", text)

    def _text(self, line: bytes, place: str) -> bytes:
        field = self.config.field
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            message = f"{place}: not JSON: {error.msg} at column {error.colno}; each line must be one object"
            raise CorpusError(message) from error
        if not isinstance(record, dict):
            message = f"{place}: found a {type(record).__name__}, expected an object with a {field!r} field"
            raise CorpusError(message)
        if field not in record:
            message = f"{place}: no field {field!r}{did_you_mean(field, record)}"
            raise CorpusError(message)
        text = record[field]
        if not isinstance(text, str):
            message = f"{place}: field {field!r} is a {type(text).__name__}, expected a string"
            raise CorpusError(message)
        # A lone surrogate has no UTF-8 form, and json lets it through.
        return text.encode("utf-8", "replace")


def read_text(path: Path) -> bytes:
    """Returns the bytes of a UTF-8 file without its mark; raises CorpusError if it can't be read or isn't text."""
    data = read_bytes(path)
    for mark, encoding in _OTHER_MARKS.items():
        if data.startswith(mark):
            message = (
                f"{path} isn't UTF-8 text: it begins as {encoding} does. Convert it (iconv -f {encoding} -t UTF-8), "
                "or leave it out of the patterns"
            )
            raise CorpusError(message)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = (
            f"{path} isn't UTF-8 text (byte 0x{data[error.start]:02x} at offset {error.start}, line {line}): "
            "convert it (iconv -f LATIN1 -t UTF-8, if that is what it is), or leave it out of the patterns"
        )
        raise CorpusError(message) from error
    if b"\0" in data:
        message = f"{path} is binary (it has a NUL byte at offset {data.index(0)}): leave it out of the patterns"
        raise CorpusError(message)
    return data.removeprefix(codecs.BOM_UTF8)
