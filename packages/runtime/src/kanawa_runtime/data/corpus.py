"""A corpus: named documents, split by a hash of their names. One is embedded in every Python."""

import abc
import functools
import hashlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from kanawa.config import Configurable, Count

from kanawa_runtime.data.errors import CorpusError

Split = Literal["train", "validation"]

#: Tests and tables say little about how people write Python; installed packages differ by machine.
EXCLUDED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "encodings", "site-packages", "dist-packages", "__pycache__"}
)


class Document(NamedTuple):
    """One text: `name` is the same on any machine: a relative path, or `path:line`."""

    name: str
    data: bytes


class Corpus(Configurable):
    """Named documents in a fixed order, some of them held out for validation."""

    class Config(Configurable.Config):
        #: One document in this many, chosen by the hash of its name, is held out; 0 holds out none.
        validation_one_in: Count = 20

    @abc.abstractmethod
    def read(self) -> Iterator[Document]:
        """Yields every document, sorted by name; CorpusError names what can't be read."""

    @functools.cached_property
    def _documents(self) -> tuple[Document, ...]:
        documents = tuple(self.read())
        if not documents:
            message = f"{self.describe()} has no text: every file is missing or empty; check the patterns in its config"
            raise CorpusError(message)
        return documents

    @functools.cached_property
    def _splits(self) -> dict[Split, list[Document]]:
        one_in = self.config.validation_one_in
        documents = list(self._documents)
        if one_in < 2:
            return {"train": [] if one_in else documents, "validation": documents if one_in else []}
        if len(documents) == 1:
            train, held_out = cut_document(documents[0], one_in)
            return {"train": [train], "validation": [held_out]}
        # By name and not by place, so that a new file moves no other one between the splits.
        names = _held_out(documents, one_in)
        return {
            "train": [d for d in documents if d.name not in names],
            "validation": [d for d in documents if d.name in names],
        }

    def documents(self, split: Split) -> list[Document]:
        """Returns the documents of `split` in order; raises CorpusError if there are none."""
        chosen = self._splits[split]
        if not chosen and self.config.validation_one_in == 1:
            message = "validation_one_in=1 leaves no training text: give 0 (none held out) or 2 and more"
            raise CorpusError(message)
        if not chosen:
            message = (
                f"{self.describe()} has {len(self._documents)} document(s) and none in the {split} split "
                f"(validation_one_in={self.config.validation_one_in}): set validation_one_in to 2 or more"
            )
            raise CorpusError(message)
        return chosen

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 (hex) over the names and bytes of all documents and the rule that splits them."""
        hasher = hashlib.sha256(f"validation_one_in={self.config.validation_one_in}\n".encode())
        for name, data in self._documents:
            hasher.update(f"{len(name.encode())} {len(data)}\n".encode() + name.encode() + data)
        return hasher.hexdigest()

    def describe(self) -> str:
        """Returns what error messages call this corpus."""
        return f"the corpus {type(self).__name__}"


class EmbeddedCorpus(Corpus):
    """The source of Python's standard library: about 11 MB that every installation has, offline."""

    class Config(Corpus.Config):
        #: The folder to read; None is the running Python's standard library.
        root: str | None = None

    @property
    def root(self) -> Path:
        """The folder whose `*.py` files are read."""
        return Path(self.config.root or sysconfig.get_path("stdlib"))

    def read(self) -> Iterator[Document]:
        """Yields `*.py` files below the root by sorted POSIX path, without `EXCLUDED_FOLDERS`."""
        paths: list[str] = []
        for folder, subfolders, names in os.walk(self.root):
            subfolders[:] = [name for name in subfolders if name not in EXCLUDED_FOLDERS]
            relative = Path(folder).relative_to(self.root)
            paths += [(relative / name).as_posix() for name in names if name.endswith(".py")]
        for path in sorted(paths):
            yield Document(path, read_bytes(self.root / path))

    def describe(self) -> str:
        """Returns the corpus's name with its folder."""
        return f"the embedded corpus of *.py files below {self.root}"


def read_bytes(path: Path) -> bytes:
    """Returns the file's content; raises CorpusError that names it."""
    try:
        return path.read_bytes()
    except OSError as error:
        message = f"can't read {path}: {error.strerror or error}; remove it from the corpus or make it readable"
        raise CorpusError(message) from error


def cut_document(document: Document, one_in: int) -> tuple[Document, Document]:
    """Returns the beginning of an only document and its end, about one `one_in`-th, for a held-out part.

    The cut is at the end of a line near that place, else of a word, else of a character. Raises CorpusError for a
    text too short to cut.
    """
    data = document.data
    share = max(1, len(data) // one_in)
    # A few times the share before a worse place is taken: a line's end is worth more than an exact share.
    places = [len(data) - share * times for times in (1, 2, 4) if share * times < len(data)]
    for place in (*(_after(data, b"\n", p) for p in places), *(_after(data, b" ", p) for p in places), *places):
        # Bytes 10xxxxxx continue a character in UTF-8.
        at = next((i for i in range(place, 0, -1) if i < len(data) and data[i] & 0xC0 != 0x80), 0)
        if data[:at].strip() and data[at:].strip():
            return Document(document.name, data[:at]), Document(document.name, data[at:])
    message = f"{document.name} is the only text and too short ({len(data)} bytes) to hold a part of it out"
    raise CorpusError(message)


def _after(data: bytes, separator: bytes, place: int) -> int:
    """Returns the end of the last separator before a place, at most as far from it as it is from the end; else 0."""
    return data.rfind(separator, max(0, 2 * place - len(data)), place) + 1


def _held_out(documents: list[Document], one_in: int) -> frozenset[str]:
    """Returns the names held out: those whose hash says so, with at least one document on either side."""
    names = [document.name for document in documents]
    held_out = frozenset(name for name in names if name_hash(name) % one_in == 0)
    if 0 < len(held_out) < len(names):
        return held_out
    # A small corpus may miss both sides of the hash; one document then stands for the share, none that is most of it.
    total = sum(len(document.data) for document in documents)
    small = [document.name for document in documents if 2 * len(document.data) <= total]
    return frozenset({min(small, key=name_hash)})


def name_hash(name: str) -> int:
    """Returns a number that depends on the name alone, the same on any machine."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest(), "big")
