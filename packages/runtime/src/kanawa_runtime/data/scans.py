"""Remembers what reading a corpus found, so that unchanged files aren't read again only for their digest."""

import json
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kanawa_runtime.data.derived import cache_key, cached
from kanawa_runtime.data.records.addresses import Found, fingerprint

#: Raise it when reading the same files would find something else.
_VERSION = "2"
#: A file written so lately may change again within one tick of its file system's clock.
_SETTLED_SECONDS = 2.0


class Fingerprint(NamedTuple):
    """What says that files are the same without reading them: JSON values, and when the newest changed."""

    files: Any
    newest_ns: int


def fingerprint_of(files: Iterable[Found]) -> Fingerprint:
    """Returns the names, sizes and times of files."""
    known = [(found.name, *fingerprint(found.address)) for found in files]
    return Fingerprint(known, max((changed_ns for _, changed_ns, *_ in known), default=0))


class Scan(NamedTuple):
    """What one reading of a corpus, or of records, found; of records `documents` counts them."""

    digest: str
    documents: int
    #: Documents held out, where several are there and some are.
    num_held_out: int = 0
    #: Names held out where the hash alone would leave a side empty; () where it doesn't.
    held_out: tuple[str, ...] = ()
    #: Rows, and rests of files, that were left out as bad, and the first problems.
    skipped_rows: int = 0
    skipped_files: int = 0
    problems: tuple[str, ...] = ()

    def unreadable(self) -> dict[str, int]:
        """Returns the counts of what was left out as bad, for events."""
        return {"unreadable_rows": self.skipped_rows, "unreadable_files": self.skipped_files}


def remembered_scan(settings: Any, fingerprint: Fingerprint | None, read_once: Callable[[], Scan]) -> Scan:
    """Returns what `read_once` finds, from the cache where settings, JSON values, and fingerprint are the same."""
    if fingerprint is None or time.time_ns() - fingerprint.newest_ns < _SETTLED_SECONDS * 1e9:
        return read_once()
    key = cache_key(_VERSION, json.dumps([settings, fingerprint.files], sort_keys=True))
    return cached("scans", key, lambda: json.dumps(read_once()).encode(), _parsed)


def _parsed(payload: bytes) -> Scan:
    digest, documents, num_held_out, held_out, rows, files, problems = json.loads(payload)
    held = (int(num_held_out), tuple(held_out))
    return Scan(str(digest), int(documents), *held, int(rows), int(files), tuple(problems))
