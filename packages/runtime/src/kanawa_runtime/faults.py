"""Faults that a drill asks for at named points of the product; without `KANAWA_FAULT` a point costs one cached call.

`KANAWA_FAULT=POINT:ACTION[=VALUE]:NTH[:RANK]`, several joined by commas. `NTH` counts from 1 the times this process
reaches the point: `3`, `3-5`, or `3+` for all from there on. Without a rank every process does it. With
`KANAWA_FAULT_ONCE=FOLDER` each fault happens in one process only, whatever is started again: the folder remembers.
"""

import ctypes
import dataclasses
import errno
import functools
import logging
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

from kanawa.errors import UsageError

logger = logging.getLogger(__name__)

VARIABLE, ONCE = "KANAWA_FAULT", "KANAWA_FAULT_ONCE"

#: Where a fault can strike. The first seven are a checkpoint's, in its order of events.
POINTS = (
    "pre_mkdir",
    "mid_write",
    "pre_manifest",
    "pre_commit",
    "post_commit",
    "in_gc",
    "in_restore",
    "in_cache_write",
    "in_compile",
    "in_data",
    "in_step",
    "in_collective",
    "in_evaluation",
    "in_gradient",
)
#: The process ends, hangs or holds the interpreter's lock; storage refuses; bytes or numbers spoil.
ACTIONS = (
    "sigkill",
    "sigterm",
    "exit",
    "sigstop",
    "sleep",
    "gil_hang",
    "enospc",
    "eio",
    "flip",
    "torn",
    "nan",
)
_SECONDS = 3600.0
_SPEC = re.compile(r"(\w+):(\w+)(?:=([\d.]+))?:(\d+)(\+|-\d+)?(?::(\d+))?")


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault; `last` is None for one that never ends, `rank` None for every process."""

    point: str
    action: str
    value: float | None
    first: int
    last: int | None
    rank: int | None

    def is_due(self, count: int, rank: int) -> bool:
        """Whether it strikes a process the `count`th time that this reaches the point."""
        in_range = count >= self.first and (self.last is None or count <= self.last)
        return in_range and self.rank in (None, rank)


class Faults:
    """The faults of one process, with how often it reached each point. Safe from several threads."""

    def __init__(self, faults: tuple[Fault, ...], once: Path | None = None) -> None:
        self.faults = faults
        self._once = once
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def strike(self, point: str, path: Path | None, rank: int) -> None:
        """Counts the point and does what is due there."""
        with self._lock:
            count = self._counts[point] = self._counts.get(point, 0) + 1
        for index, fault in enumerate(self.faults):
            if fault.point == point and fault.is_due(count, rank) and self._is_first(index):
                logger.warning("fault: %s at %s, time %d, rank %d", fault.action, point, count, rank)
                _act(fault, path)

    def _is_first(self, index: int) -> bool:
        if self._once is None:
            return True
        try:
            (self._once / f"fault-{index}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def reached(point: str, path: Path | None = None) -> None:
    """Says that the product is at a point, and with which file or folder; raises OSError where storage is to refuse."""
    faults = _planned()
    if faults is not None:
        faults.strike(point, path, _rank())


def in_program(point: str) -> tuple[Fault, ...]:
    """Returns the faults of a point that lies inside a compiled program, which has to make them itself."""
    faults = _planned()
    return () if faults is None else tuple(fault for fault in faults.faults if fault.point == point)


def parsed(text: str) -> tuple[Fault, ...]:
    """Returns the faults that a text asks for; raises UsageError."""
    return tuple(_parsed(part.strip()) for part in text.split(",") if part.strip())


def _parsed(text: str) -> Fault:
    match = _SPEC.fullmatch(text)
    if match is None:
        message = f"{VARIABLE} has {text!r}, expected POINT:ACTION[=VALUE]:NTH[:RANK], such as in_step:sleep=30:5:1"
        raise UsageError(message)
    point, action, value, first, more, rank = match.groups()
    for kind, word, known in (("point", point, POINTS), ("action", action, ACTIONS)):
        if word not in known:
            message = f"{VARIABLE} has the {kind} {word!r}, expected one of: {', '.join(known)}"
            raise UsageError(message)
    last = int(first) if more is None else None if more == "+" else int(more[1:])
    return Fault(
        point, action, None if value is None else float(value), int(first), last, None if rank is None else int(rank)
    )


@functools.cache
def _planned() -> Faults | None:
    """Returns the process's faults, read once; None for a process that is left alone."""
    faults = parsed(os.environ.get(VARIABLE, ""))
    if not faults:
        return None
    once = os.environ.get(ONCE)
    return Faults(faults, Path(once) if once else None)


def _rank() -> int:
    jax = sys.modules.get("jax")
    return 0 if jax is None else int(jax.process_index())


def _act(fault: Fault, path: Path | None) -> None:
    """Does what a fault says; a spoilt number ("nan") is made by the program that computes it."""
    seconds = _SECONDS if fault.value is None else fault.value
    match fault.action:
        case "sigkill" | "sigterm" | "sigstop":
            os.kill(os.getpid(), signal.Signals[fault.action.upper()])
        case "exit":
            os._exit(1 if fault.value is None else int(fault.value))
        case "sleep":
            time.sleep(seconds)
        case "gil_hang":
            # As an extension that computes without letting go: PyDLL, unlike CDLL, keeps the interpreter's lock.
            ctypes.PyDLL(None).sleep(int(seconds))
        case "enospc" | "eio":
            number = getattr(errno, fault.action.upper())
            raise OSError(number, f"{os.strerror(number)} (a fault that {VARIABLE} asked for)", str(path or ""))
        case "flip" | "torn":
            _damage(fault, path)


def _damage(fault: Fault, path: Path | None) -> None:
    """Damages a file, or the largest one of a folder: one bit in its middle, or its second half.

    After the latter the process ends, as a power cut does before the rest has reached the disk.
    """
    if path is not None and path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file()]
        path = max(files, key=lambda file: file.stat().st_size, default=None)
    middle = 0 if path is None else path.stat().st_size // 2
    if path is not None and fault.action == "flip":
        with path.open("r+b") as stream:
            stream.seek(middle)
            byte = stream.read(1)[0]
            stream.seek(middle)
            stream.write(bytes([byte ^ (1 << int(fault.value or 0))]))
    if fault.action == "torn":
        if path is not None:
            os.truncate(path, middle)
        os.kill(os.getpid(), signal.SIGKILL)
