"""A user's own text: files or their lines as documents, and JSON Lines records."""

import glob
import json
import os
from collections.abc import Iterator
from pathlib import Path

from kanawa.config import REQUIRED
from kanawa.errors import did_you_mean

from kanawa_runtime.data.corpus import Corpus, Document, read_bytes
from kanawa_runtime.data.errors import CorpusError


class FileCorpus(Corpus):
    """What corpora of a user's files share: patterns, and names relative to a root."""

    class Config(Corpus.Config):
        #: Globs, absolute or relative to `root`; `**` crosses folders. Each must match a file.
        files: tuple[str, ...] = REQUIRED
        #: Names, and so the split, are relative to this folder: moving it as a whole changes
        #: nothing.
        root: str = "."

    def paths(self) -> list[tuple[str, Path]]:
        """Returns (name, path) of every file, by name; raises CorpusError for a fruitless glob."""
        root = Path(self.config.root)
        found: dict[str, Path] = {}
        for pattern in self.config.files:
            matches = glob.glob(pattern, root_dir=root, recursive=True)
            files = [root / match for match in matches if (root / match).is_file()]
            if not files:
                message = f"no file matches {pattern!r} below {root.resolve()}; check files= and root="
                raise CorpusError(message)
            found.update({Path(os.path.relpath(file, root)).as_posix(): file for file in files})
        return sorted(found.items())

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
            for number, line in enumerate(read_text(path).splitlines(), 1):
                if line.strip():
                    yield Document(f"{name}:{number}", self._text(line, f"{path}:{number}"))

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
        if not isinstance(record[field], str):
            message = f"{place}: field {field!r} is a {type(record[field]).__name__}, expected a string"
            raise CorpusError(message)
        return record[field].encode("utf-8", "surrogatepass")


def read_text(path: Path) -> bytes:
    """Returns the bytes of a UTF-8 file; raises CorpusError if it can't be read or isn't text."""
    data = read_bytes(path)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        message = (
            f"{path} isn't UTF-8 text (byte 0x{data[error.start]:02x} at offset {error.start}): "
            "convert it, or leave it out of the patterns"
        )
        raise CorpusError(message) from error
    if b"\0" in data:
        message = f"{path} is binary (it has a NUL byte at offset {data.index(0)}): leave it out"
        raise CorpusError(message)
    return data
