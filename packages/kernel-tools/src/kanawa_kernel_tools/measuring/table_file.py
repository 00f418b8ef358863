"""Writes entries into a tuning table, which later runs on such a device read."""

import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kanawa.kernels.tuning_table import FORMAT, Entry, TuningTableError, read_table


def add_entries(path: Path, entries: Iterable[Entry]) -> None:
    """Writes entries into a table, in place of those for the same problems on the same device.

    Raises TuningTableError where it can't be written, or what is there isn't a table.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            merged = {entry.place: entry for entry in (*read_table(path), *entries)}
            _replace(path, {"format": FORMAT, "entries": [entry.as_json() for entry in merged.values()]})
    except OSError as error:
        message = f"the tuning table {path} can't be written ({error.strerror or error}); give another with --table"
        raise TuningTableError(message) from error


def _replace(path: Path, content: Any) -> None:
    """Writes a whole file and renames it: a run that starts meanwhile reads the old one or the new one."""
    # Not tempfile's, which only its owner may read: the table may be shared.
    written = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        written.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Waits until no other process adds entries: each would drop what the other measured.

    The lock is on the folder, for it stays while the table is replaced: a lock file would be one more to wonder about.
    """
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Network file systems may know no locks; a lost entry there is measured again, a refusal would lose them all.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
