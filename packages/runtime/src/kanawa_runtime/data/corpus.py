"""A corpus: named documents, split by a hash of their names. One is embedded in every Python."""

import abc
import collections
import functools
import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from kanawa.config import Configurable, Count, to_json

from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.records.usable import Skipped
from kanawa_runtime.data.scans import Fingerprint, Scan, remembered_scan

Split = Literal["train", "validation"]

#: Tests and tables say little about how people write Python; installed packages differ by machine.
EXCLUDED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "encodings", "site-packages", "dist-packages", "__pycache__"}
)


#: Text that waits, in one reading of a corpus, until the hash of names has put documents on both sides of the split.
_MOST_WAITING_BYTES = 1 << 24


class Document(NamedTuple):
    """One text: `name` is the same on any machine: a relative path, or `path:line`."""

    name: str
    data: bytes


class Corpus(Configurable):
    """Named documents in a fixed order, some of them held out for validation; never all in memory."""

    class Config(Configurable.Config):
        #: One document in this many, chosen by the hash of its name, is held out; 0 holds out none.
        validation_one_in: Count = 20

    #: What the last `read` left out, where a subclass leaves out bad rows.
    skipped: Skipped | None = None

    @abc.abstractmethod
    def read(self) -> Iterator[Document]:
        """Yields every document in a fixed order; CorpusError names what can't be read."""

    def fingerprint(self) -> Fingerprint | None:
        """Returns what changes whenever the files that `read` yields do, found without reading; None if unknown."""
        return None

    @functools.cached_property
    def scan(self) -> Scan:
        """What reading the corpus once found; remembered for files that haven't changed since."""
        return self._scanned(self._first_reading("train"))

    def scan_while(self, split: Split, use: Callable[[Iterator[Document]], None]) -> bool:
        """Finds `scan`, and passes the documents of a split to `use` in the same reading; returns whether it had all.

        Not where `scan` is known or remembered, nor where so few documents are split by another rule than their hash.
        """
        if "scan" in vars(self):
            return False
        reading = self._first_reading(split)
        self.scan = self._scanned(reading, use)
        return reading.gave_all

    def _first_reading(self, split: Split) -> "_FirstReading":
        return _FirstReading(self.read(), split, self.config.validation_one_in)

    def _scanned(self, reading: "_FirstReading", use: Callable[[Iterator[Document]], None] | None = None) -> Scan:
        def read_once() -> Scan:
            documents = iter(reading)
            if use is not None:
                use(documents)
            # What `use` left.
            collections.deque(documents, maxlen=0)
            return self._found(reading)

        scan = remembered_scan(to_json(self.config), self.fingerprint(), read_once)
        Skipped(scan.skipped_rows, scan.skipped_files, list(scan.problems)).show(self.describe())
        return scan

    def _found(self, reading: "_FirstReading") -> Scan:
        one_in, count, num_held_out = reading.one_in, reading.count, reading.num_held_out
        skipped = self.skipped or Skipped()
        if not count:
            skipped.show(self.describe())
            message = (
                f"{self.describe()} has no text: every file is missing or empty, or was left out as bad; check the "
                "patterns in its config"
            )
            raise CorpusError(message)
        held_out: tuple[str, ...] = ()
        if one_in > 1 and count > 1 and num_held_out in (0, count):
            # A small corpus may miss both sides of the hash; one document then stands for the share, none that is most
            # of it.
            names = (document.name for document in self.read() if 2 * len(document.data) <= reading.total)
            held_out = (min(names, key=name_hash),)
        if held_out:
            num_held_out = 1
        return Scan(
            reading.hasher.hexdigest(), count, num_held_out, held_out, skipped.rows, skipped.files, tuple(skipped.first)
        )

    def documents(self, split: Split) -> Iterator[Document]:
        """Returns an iterator over the documents of `split` in order; raises CorpusError if there are none."""
        one_in = self.config.validation_one_in
        scan = self.scan
        if one_in == 1 and split == "train":
            message = "validation_one_in=1 leaves no training text: give 0 (none held out) or 2 and more"
            raise CorpusError(message)
        if one_in == 0 and split == "validation":
            message = (
                f"{self.describe()} has {scan.documents} document(s) and none in the {split} split "
                f"(validation_one_in={one_in}): set validation_one_in to 2 or more"
            )
            raise CorpusError(message)
        return self._documents(split, scan)

    def num_documents(self, split: Split) -> int:
        """Returns how many documents a split has; 0 for none."""
        scan, one_in = self.scan, self.config.validation_one_in
        if one_in < 2:
            return scan.documents if (split == "validation") == (one_in == 1) else 0
        if scan.documents == 1:
            return 1
        return scan.num_held_out if split == "validation" else scan.documents - scan.num_held_out

    def _documents(self, split: Split, scan: Scan) -> Iterator[Document]:
        one_in = self.config.validation_one_in
        # Hashed again while it is read: files that change under a run must not change its rows.
        hasher = _hasher(one_in)
        for document in self.read():
            _add(hasher, document)
            if one_in < 2:
                yield document
            elif scan.documents == 1:
                yield cut_document(document, one_in)[split == "validation"]
            # By name and not by place, so that a new file moves no other one between the splits.
            elif _in_validation(document.name, one_in, scan) == (split == "validation"):
                yield document
        if hasher.hexdigest() != scan.digest:
            message = f"{self.describe()} changed while it was read: start again when nothing writes to it"
            raise CorpusError(message)

    @property
    def digest(self) -> str:
        """Sha256 (hex) over the names and bytes of all documents and the rule that splits them."""
        return self.scan.digest

    def describe(self) -> str:
        """Returns what error messages call this corpus."""
        return f"the corpus {type(self).__name__}"


class _FirstReading:
    """Yields the documents of a split by the hash of their names, and counts and hashes all of them."""

    def __init__(self, documents: Iterator[Document], split: Split, one_in: int) -> None:
        self._documents, self._split = documents, split
        self.one_in, self.hasher = one_in, _hasher(one_in)
        self.count = self.num_held_out = self.total = 0
        #: Whether those of the split were all yielded; False before the end.
        self.gave_all = False

    def __iter__(self) -> Iterator[Document]:
        waiting: list[Document] = []
        settled, gives_up = self.one_in < 2, False
        for document in self._documents:
            _add(self.hasher, document)
            self.count += 1
            self.total += len(document.data)
            held_out = is_held_out(document.name, self.one_in)
            self.num_held_out += held_out and self.one_in > 1
            settled = settled or 0 < self.num_held_out < self.count
            if not gives_up and held_out == (self._split == "validation"):
                waiting.append(document)
            if settled:
                yield from waiting
                waiting.clear()
            elif self.total > _MOST_WAITING_BYTES:
                gives_up = True
                waiting.clear()
        self.gave_all = settled and not gives_up


def _hasher(one_in: int) -> "hashlib._Hash":
    return hashlib.sha256(f"validation_one_in={one_in}\n".encode())


def _add(hasher: "hashlib._Hash", document: Document) -> None:
    name = document.name.encode()
    hasher.update(b"%d %d\n%b" % (len(name), len(document.data), name))
    hasher.update(document.data)


def is_held_out(name: str, one_in: int) -> bool:
    """Returns whether a name is one of the one in `one_in` that are held out; 0 holds out none."""
    return bool(one_in) and name_hash(name) % one_in == 0


def _in_validation(name: str, one_in: int, scan: Scan) -> bool:
    return name in scan.held_out if scan.held_out else is_held_out(name, one_in)


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


def name_hash(name: str) -> int:
    """Returns a number that depends on the name alone, the same on any machine."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest(), "big")
