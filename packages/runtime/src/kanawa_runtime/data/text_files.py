"""A user's own text: files or their lines as documents, and the text of records."""

import codecs
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kanawa.config import REQUIRED
from kanawa.errors import did_you_mean

from kanawa_runtime.data.corpus import Corpus, Document
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.records.addresses import Found, opened, readable
from kanawa_runtime.data.records.listing import found_files
from kanawa_runtime.data.records.rows import check_mark, not_utf8, other_use, text_lines
from kanawa_runtime.data.records.usable import OnBad, Skipped, usable_records
from kanawa_runtime.data.scans import Fingerprint, fingerprint_of


def named_files(patterns: Iterable[str], root: Path) -> list[tuple[str, Path]]:
    """Returns (name relative to `root`, path) of every local file once; see `found_files`."""
    return [(found.name, Path(found.address)) for found in found_files(patterns, str(root))]


class FileCorpus(Corpus):
    """What corpora of a user's files share: patterns, and names relative to a root."""

    class Config(Corpus.Config):
        #: Where the files lie says nothing about them: their content is pinned by the corpus's digest.
        PLACEMENT = ("root",)

        #: Globs, absolute or relative to `root`; `**` crosses folders, a folder means all below it. Each must match.
        #: Addresses such as s3://bucket/**/*.jsonl are read through fsspec.
        files: tuple[str, ...] = REQUIRED
        #: Names, and so the split, are relative to this folder or address: moving it as a whole changes nothing.
        root: str = "."

    def paths(self) -> list[tuple[str, Path]]:
        """Returns (name, path) of every local file; see `named_files`."""
        return named_files(self.config.files, Path(self.config.root))

    def found(self) -> list[Found]:
        """Returns every file, local or at an address; see `found_files`."""
        return found_files(self.config.files, self.config.root)

    def fingerprint(self) -> Fingerprint | None:
        """Returns the files' names, sizes and times; None of a class that doesn't say that they are all it reads."""
        if not type(self).__dict__.get("READS_FILES_ONLY", False):
            return None
        return fingerprint_of(self.found())

    def describe(self) -> str:
        """Returns the corpus's kind with its patterns."""
        return f"the corpus of {', '.join(self.config.files)}"


class TextFiles(FileCorpus):
    """UTF-8 text files (`.gz`, `.zst` too), each a document, or each line that isn't blank a document."""

    READS_FILES_ONLY = True

    class Config(FileCorpus.Config):
        split_lines: bool = False
        #: Whether a file or line that is no text is an error, or left out and counted.
        on_bad: OnBad = "stop"

    def read(self) -> Iterator[Document]:
        """Yields documents named by path, or `path:line` counting from 1."""
        self.skipped = skipped = Skipped()
        for file in self.found():
            try:
                yield from self._lines(file, skipped) if self.config.split_lines else _whole(file)
            except CorpusError as error:
                if self.config.on_bad == "stop":
                    raise
                skipped.add(str(error), whole_file=True)

    def _lines(self, file: Found, skipped: Skipped) -> Iterator[Document]:
        with opened(file.address) as stream, readable(file.address):
            for number, line in text_lines(stream, file.address):
                if not line.strip():
                    continue
                problem = "binary: it has a NUL byte" if b"\0" in line else not_utf8(line)
                if not problem:
                    yield Document(f"{file.name}:{number}", line)
                    continue
                message = f"{file.address}:{number}: {problem}"
                if self.config.on_bad == "stop":
                    raise CorpusError(message)
                skipped.add(message)


def _whole(file: Found) -> Iterator[Document]:
    data = read_text(file.address)
    # What is blank teaches nothing, and held out it has no bytes to divide by.
    if data.strip():
        yield Document(file.name, data)


class TextOfRecords(FileCorpus):
    """A document a record: the text of one field."""

    class Config(FileCorpus.Config):
        field: str = "text"
        #: Whether a record that can't be read or has no text is an error, or left out and counted.
        on_bad: OnBad = "stop"

    #: The format, where the files' own suffixes don't say it.
    _suffix: str | None = None

    def read(self) -> Iterator[Document]:
        """Yields documents named `path:line` or `path#row`; raises CorpusError that names a bad record's place."""
        self.skipped = Skipped()
        field = self.config.field
        records = usable_records(
            self.found(),
            self.config.on_bad,
            self.skipped,
            check=self._problem,
            columns=[field],
            suffix=self._suffix,
        )
        for name, fields in records:
            text = fields[field]
            # A lone surrogate has no UTF-8 form, and json lets it through.
            data = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
            if data.strip():
                yield Document(name, data)

    def _problem(self, fields: dict[str, Any]) -> str:
        field = self.config.field
        if field not in fields:
            return f"no field {field!r}{did_you_mean(field, fields)}{other_use(fields)}"
        text = fields[field]
        if isinstance(text, bytes):
            return not_utf8(text)
        return "" if isinstance(text, str) else f"field {field!r} is a {type(text).__name__}, expected a string"


class JsonLines(TextOfRecords):
    """JSON Lines files, whatever their suffix: one object a line, whose `field` holds the text of a document."""

    READS_FILES_ONLY = True
    _suffix = ".jsonl"


class RecordTexts(TextOfRecords):
    """Records of any format that `read_rows` knows by suffix, whose `field` holds the text of a document."""

    READS_FILES_ONLY = True

    class Config(TextOfRecords.Config):
        #: The split to read of a folder that Hugging Face `datasets` saved with several.
        dataset_split: str = "train"

    def found(self) -> list[Found]:
        """Returns every file; of saved datasets those of `dataset_split`."""
        return found_files(self.config.files, self.config.root, self.config.dataset_split)


def read_text(path: Path | str) -> bytes:
    """Returns the bytes of a UTF-8 file without its mark; raises CorpusError if it can't be read or isn't text."""
    with opened(str(path)) as file, readable(str(path)):
        data = file.read()
    check_mark(data, str(path))
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
