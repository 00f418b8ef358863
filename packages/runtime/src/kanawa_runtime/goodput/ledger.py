"""RUN/ledger.jsonl: how an attempt spent its seconds, section by section, appended at most every second.

Kinds of lines, each with `attempt` and the wall clock as `time`:

- `opened`: `process_started` (wall clock), `processes`
- `began`: `step`, the updates complete when the attempt goes on, and `origin` ("new", "resumed", "initialised")
- `spent`: `seconds` by section on the monotonic clock since the line before, `steps` taken in them, `step` reached
- `lost`: of an attempt that never said how it ended, written by the next one: when it was last alive and in which
  section, from the file beside the ledger that a living attempt keeps up to date
- `ended`: `outcome`
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kanawa_runtime.goodput.process_start import process_started
from kanawa_runtime.goodput.sections import Section
from kanawa_runtime.runs.events import mend_torn_line
from kanawa_runtime.runs.run_directory import ALIVE, LEDGER

#: Steps and waits for data are gathered for so long; everything else is written as it ends.
_GATHER_SECONDS = 1.0
_GATHERED: tuple[Section, ...] = ("step", "data")
#: A step so much slower than those before it has a line of its own, or the average would hide the stall.
_SLOW_FACTOR, _SLOW_SECONDS = 3.0, 0.5


class Ledger:
    """Writes one attempt's lines into a run's folder. A disk that refuses costs lines, never the run."""

    def __init__(self, folder: Path, attempt: int, processes: int = 1) -> None:
        self._path, self._alive_path = folder / LEDGER, folder / ALIVE
        self._attempt = attempt
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._steps = 0
        self._step = 0
        self._section: Section = "setup"
        self._since = self._flushed = time.monotonic()
        self._typical: float | None = None
        self._ended = threading.Event()
        with contextlib.suppress(OSError):
            mend_torn_line(self._path)
        lost = _last_sign(self._alive_path)
        if lost is not None:
            self._append({**lost, "kind": "lost"})
        self._append({"kind": "opened", "process_started": process_started(), "processes": processes})
        self._sign()
        threading.Thread(target=self._live, name="ledger", daemon=True).start()

    def enter(self, section: Section, step: int) -> None:
        """The training thread enters a section, or the next step; see `Sections`."""
        with self._lock:
            now = time.monotonic()
            before, spent = self._section, now - self._since
            is_slow = before == "step" and self._is_slow(spent)
            if is_slow:
                # What was gathered before it is another line.
                self._flush(now - spent)
            self._seconds[before] = self._seconds.get(before, 0.0) + spent
            self._steps += max(0, step - self._step)
            self._section, self._since, self._step = section, now, step
            if is_slow or before not in _GATHERED or now - self._flushed >= _GATHER_SECONDS:
                self._flush(now)

    def relabel(self, section: Section) -> None:
        """What the training thread is in now was another section."""
        with self._lock:
            self._section = section

    def began(self, step: int, origin: str) -> None:
        """The attempt goes on from a state of so many updates."""
        with self._lock:
            self._step = step
            self._append({"kind": "began", "step": step, "origin": origin})

    def end(self, outcome: str) -> None:
        """The attempt is over; a file that says that it lives is removed."""
        self._ended.set()
        with self._lock:
            now = time.monotonic()
            self._seconds[self._section] = self._seconds.get(self._section, 0.0) + now - self._since
            self._since = now
            self._flush(now)
            self._append({"kind": "ended", "outcome": outcome})
            with contextlib.suppress(OSError):
                self._alive_path.unlink()

    def _is_slow(self, seconds: float) -> bool:
        typical = self._typical
        slow = typical is not None and seconds > typical * _SLOW_FACTOR + _SLOW_SECONDS
        if not slow:
            self._typical = seconds if typical is None else typical + 0.1 * (seconds - typical)
        return slow

    def _flush(self, now: float) -> None:
        if self._seconds:
            seconds = {name: round(value, 6) for name, value in self._seconds.items()}
            self._append({"kind": "spent", "seconds": seconds, "steps": self._steps, "step": self._step})
        self._seconds, self._steps, self._flushed = {}, 0, now

    def _append(self, record: Mapping[str, Any]) -> None:
        line = {"attempt": self._attempt, "time": round(time.time(), 6), **record}
        # Opened anew each time: a line a second costs little, and no descriptor outlives a kill or a lost mount.
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, (json.dumps(line) + "\n").encode())
            finally:
                os.close(descriptor)

    def _live(self) -> None:
        while not self._ended.wait(_GATHER_SECONDS):
            with self._lock:
                if not self._ended.is_set():
                    self._sign()

    def _sign(self) -> None:
        sign = {"attempt": self._attempt, "time": round(time.time(), 6), "section": self._section, "step": self._step}
        with contextlib.suppress(OSError):
            beside = self._alive_path.with_name(f"{ALIVE}.partial")
            beside.write_text(json.dumps(sign))
            beside.replace(self._alive_path)


def read_ledger(path: Path) -> list[dict[str, Any]]:
    """Returns a ledger's lines in order; what can't be read is left out. Raises OSError."""
    records = []
    for line in path.read_bytes().split(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and isinstance(record.get("kind"), str):
                records.append(record)
    return records


def _last_sign(path: Path) -> dict[str, Any] | None:
    """Returns when an attempt that never ended was last alive, by the file that it left."""
    try:
        sign = json.loads(path.read_bytes())
        return {name: sign[name] for name in ("attempt", "time", "section", "step")}
    except (OSError, ValueError, KeyError, TypeError):
        return None
