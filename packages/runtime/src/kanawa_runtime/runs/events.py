"""RUN/events.jsonl: what happened in a run, one JSON object a line, appended as it happens.

A line is one write to a file opened for appending, so a kill leaves whole lines and at most one
torn one at the end. Floats are written by `repr` and read back bit for bit; non-finite ones are the
strings "nan", "inf" and "-inf".
"""

import contextlib
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from kanawa.errors import KanawaError
from kanawa.guarded_read import check_readable, guarded_open

logger = logging.getLogger(__name__)

#: Lines held in memory while the disk is full; older ones are dropped beyond it.
_MAX_HELD = 10_000


class EventLogError(KanawaError):
    """Events could not be written and are lost."""


class EventLog:
    """Appends records to one file; safe from several threads. With `path` None nothing is written.

    `on_durable` is called once a record was made durable, that of a checkpoint or of the end.

    Each opening is an attempt, numbered from 1. While the disk is full, lines are held and
    written later, in order.
    """

    def __init__(
        self, path: Path | None, attempt: int | None = None, on_durable: Callable[[], None] = lambda: None
    ) -> None:
        self.path = path
        self._on_durable = on_durable
        self._lock = threading.Lock()
        self._held: list[bytes] = []
        self._descriptor: int | None = None
        #: The newest step that an earlier attempt recorded.
        self.last_step = 0
        before = 0
        if path is not None:
            mend_torn_line(path)
            records = read_events(path)
            before, self.last_step = last_attempt(records), max(step_records(records), default=0)
            # A descriptor, not a file object: one write is one system call, which a kill can't cut into two.
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.attempt = before + 1 if attempt is None else attempt

    def write(self, event: str, /, **fields: Any) -> dict[str, Any]:
        """Appends one record and returns it; `time` is seconds since the epoch, `clock` a monotonic one."""
        record = {"event": event, "attempt": self.attempt}
        record |= {name: plain(value) for name, value in fields.items()}
        # Two clocks: the first says when, but jumps with the machine's; durations are differences of the second.
        record |= {"time": round(time.time(), 6), "clock": round(time.monotonic(), 6)}
        if self.path is None:
            return record
        line = json.dumps(record, allow_nan=False, separators=(", ", ": ")) + "\n"
        with self._lock:
            self._held.append(line.encode())
            self._write_held()
        if event in ("checkpoint_committed", "run_ended"):
            self.sync()
            self._on_durable()
        return record

    def sync(self) -> bool:
        """Makes everything written so far durable; False where the disk doesn't take it now."""
        with self._lock:
            if self._descriptor is None:
                return True
            self._write_held()
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                logger.error("%s could not be synced: %s", self.path, error)
                return False
            return not self._held

    def close(self) -> None:
        """Syncs and closes; raises EventLogError where lines are lost."""
        self.sync()
        with self._lock:
            if self._descriptor is None:
                return
            with contextlib.suppress(OSError):  # whether lines are lost is known already
                os.close(self._descriptor)
            self._descriptor = None
            lost = len(self._held)
        if lost:
            message = f"{lost} events could not be written to {self.path}: free disk space"
            raise EventLogError(message)

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write_held(self) -> None:
        """Writes what is held; on failure takes back a partial line and keeps the rest."""
        descriptor = self._descriptor
        if descriptor is None:
            return
        while self._held:
            line, size = self._held[0], None
            try:
                size = os.fstat(descriptor).st_size
                whole = os.write(descriptor, line) == len(line)
                reason = "the disk took only a part of a line"
            except OSError as error:
                whole, reason = False, str(error)
            if not whole:
                # Else the next line would continue this one, and both would be unreadable. A storage that is gone
                # refuses this as well: the next attempt mends the line.
                with contextlib.suppress(OSError):
                    if size is not None:
                        os.ftruncate(descriptor, size)
                if len(self._held) == 1:
                    logger.error("events are held in memory: %s: %s", self.path, reason)
                del self._held[:-_MAX_HELD]
                return
            self._held.pop(0)


def plain(value: Any) -> Any:
    """Returns a value as JSON can hold it: NumPy and JAX scalars as numbers, non-finite floats as strings."""
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, float):
        if not hasattr(value, "dtype"):
            return str(value)
        value = np.asarray(value).tolist()
        if not isinstance(value, float):
            return plain(value)
    return value if math.isfinite(value) else str(value)


def number(value: Any) -> float:
    """Returns a recorded number as a float; the strings of non-finite ones become them again."""
    return float(value)


def mend_torn_line(path: Path) -> None:
    """Ends a file's last line: adds the newline to a whole record, cuts off a torn one."""
    if not path.exists():
        return
    check_readable(path)
    with path.open("rb+") as file:
        data = file.read()
        if not data or data.endswith(b"\n"):
            return
        start = data.rfind(b"\n") + 1
        if parsed_event(data[start:]) is not None:
            file.write(b"\n")
            return
        logger.warning("%s: cut off a torn last line of %d bytes", path, len(data) - start)
        file.truncate(start)


def read_events(path: Path) -> list[dict[str, Any]]:
    """Returns the records in order; unreadable lines are skipped, with a warning unless it is the torn last one."""
    if not path.exists():
        return []
    with guarded_open(path) as file:
        lines = file.read().split(b"\n")
    records = []
    for index, line in enumerate(lines):
        record = parsed_event(line) if line.strip() else None
        if record is not None:
            records.append(record)
        elif line.strip() and index < len(lines) - 1:
            logger.warning("%s: line %d can't be read and is skipped", path, index + 1)
    return records


def read_kinds(path: Path, kinds: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yields the records of some kinds; of a long log only the lines that may be one are parsed. Raises OSError."""
    marks = [json.dumps(kind).encode() for kind in kinds]
    with guarded_open(path) as lines:
        for line in lines:
            record = parsed_event(line) if any(mark in line for mark in marks) else None
            if record is not None and record["event"] in kinds:
                yield record


def step_records(events: list[dict[str, Any]], kind: str = "step") -> dict[int, dict[str, Any]]:
    """Returns records of a kind by step, in step order; after a resume the last record of a step wins."""
    last = {r["step"]: r for r in events if r["event"] == kind and isinstance(r.get("step"), int)}
    return dict(sorted(last.items()))


def last_attempt(events: list[dict[str, Any]]) -> int:
    """Returns the highest attempt number, 0 where there is none."""
    return max((r["attempt"] for r in events if isinstance(r.get("attempt"), int)), default=0)


def parsed_event(line: bytes) -> dict[str, Any] | None:
    """Returns a line's record, None where it is not a whole one."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("event"), str) else None
