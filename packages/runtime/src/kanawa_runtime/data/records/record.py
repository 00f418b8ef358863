"""The contract of records: named objects with fields, in a fixed order."""

import abc
import base64
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from kanawa.config import Configurable, to_json

from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.records.usable import Skipped
from kanawa_runtime.data.scans import Fingerprint, Scan, remembered_scan


class Record(NamedTuple):
    """One object of a file: `name` is `path:line` or `path#row`, relative to the root; the same on any machine."""

    name: str
    fields: Mapping[str, Any]


class Records(Configurable):
    """Records in a fixed order, read as they are needed."""

    class Config(Configurable.Config):
        pass

    @abc.abstractmethod
    def read(self) -> Iterator[Record]:
        """Yields every record; raises CorpusError that names the file and place of what can't be read."""

    #: What the last `read` left out, where a subclass leaves out bad rows.
    skipped: Skipped | None = None

    def fingerprint(self) -> Fingerprint | None:
        """Returns what changes whenever what `read` yields does, found without reading; None if unknown."""
        return None

    @functools.cached_property
    def scan(self) -> Scan:
        """What reading the records once found; remembered where the fingerprint says that nothing changed since."""
        scan = remembered_scan(to_json(self.config), self.fingerprint(), self._read_once)
        Skipped(scan.skipped_rows, scan.skipped_files, list(scan.problems)).show(self.describe())
        return scan

    def _read_once(self) -> Scan:
        hasher, count = hashlib.sha256(), 0
        for record in self.read():
            hasher.update(record_line(record))
            count += 1
        skipped = self.skipped or Skipped()
        return Scan(
            hasher.hexdigest(), count, skipped_rows=skipped.rows, skipped_files=skipped.files,
            problems=tuple(skipped.first),
        )  # fmt: skip

    def unchanged(self) -> Iterator[Record]:
        """Yields every record; raises CorpusError at the end where they aren't those that the digest was made of."""
        hasher = hashlib.sha256()
        for record in self.read():
            hasher.update(record_line(record))
            yield record
        if hasher.hexdigest() != self.digest:
            message = f"{self.describe()} changed while they were read: start again when nothing writes to them"
            raise CorpusError(message)

    @property
    def digest(self) -> str:
        """Sha256 (hex) over the names and fields of all records."""
        return self.scan.digest

    def describe(self) -> str:
        """Returns what messages call these records."""
        return f"the records of {type(self).__name__}"


def record_line(record: Record) -> bytes:
    """Returns what a record adds to the digest."""
    return json.dumps(list(record), sort_keys=True, default=str).encode() + b"\n"


def stored_columns(fields: Mapping[str, Any]) -> bytes:
    """Returns a record's columns as JSON, with the types that tables have beside those of JSON; see `read_columns`."""
    return json.dumps(dict(fields), default=_tagged).encode()


def read_columns(stored: bytes) -> dict[str, Any]:
    """Returns what `stored_columns` wrote: tuples as lists, and of unknown types their text."""
    fields: dict[str, Any] = json.loads(stored, object_hook=_untagged)
    return fields


def _tagged(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_TAG: "bytes", "value": base64.b64encode(value).decode()}
    name = type(value).__name__
    if name in _FROM_TEXT and isinstance(value, Decimal | date | time):
        return {_TAG: name, "value": str(value)}
    if isinstance(value, timedelta):
        return {_TAG: name, "value": [value.days, value.seconds, value.microseconds]}
    # Arrays and numbers of NumPy.
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _untagged(found: dict[str, Any]) -> Any:
    kind = str(found.get(_TAG))
    if kind == "bytes":
        return base64.b64decode(found["value"])
    if kind == "timedelta":
        return timedelta(*found["value"])
    return _FROM_TEXT[kind](found["value"]) if kind in _FROM_TEXT else found


_TAG = "\0kanawa"
_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "Decimal": Decimal, "date": date.fromisoformat, "datetime": datetime.fromisoformat, "time": time.fromisoformat,
}  # fmt: skip
