"""How an attempt spends its seconds, section by section, as events of the run, at most a second late.

Events written here, each with `attempt` and the wall clock as `time`:

- `attempt_opened`: `process_started` (wall clock), `processes`
- `time_spent`: seconds by section (`sections`) on the monotonic clock since the one before, `steps` taken in them,
  `step` reached
- `attempt_lost`: of an attempt that has no `run_ended`, written by the next one: `lost` (its number), `alive_until` and
  `section`, from the file that a living attempt rewrites every second

With `prepared` (`step`, `origin`) and `run_ended` (`outcome`) they are all that an account needs.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kanawa.guarded_read import UnreadableFileError, guarded_json

from kanawa_runtime.goodput.account import STALL_FACTOR, STALL_SECONDS
from kanawa_runtime.goodput.sections import Section
from kanawa_runtime.runs.events import EventLog, read_kinds
from kanawa_runtime.runs.run_directory import ALIVE, EVENTS

_IMPORTED = time.time()
#: Of /proc/PID/stat behind the command's name: the start in ticks since boot.
_START = 19
#: Steps and waits for data are gathered for so long; everything else is written as it ends.
_GATHER_SECONDS = 1.0
_MOST_SIGN_BYTES = 1 << 16
_GATHERED: tuple[Section, ...] = ("step", "data")
_KINDS = {
    "attempt_opened": "opened",
    "prepared": "began",
    "time_spent": "spent",
    "attempt_lost": "lost",
    "run_ended": "ended",
}


class TimeLog:
    """Writes one attempt's events into the run's log. A disk that refuses costs events, never the run."""

    def __init__(self, folder: Path, events: EventLog, processes: int = 1) -> None:
        self._events, self._alive_path = events, folder / ALIVE
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._steps = 0
        self._step = 0
        self._section: Section = "setup"
        self._since = self._flushed = time.monotonic()
        self._typical: float | None = None
        self._ended = threading.Event()
        lost = _last_sign(self._alive_path)
        if lost is not None:
            events.write("attempt_lost", **lost)
        events.write("attempt_opened", process_started=process_started(), processes=processes)
        self._sign()
        threading.Thread(target=self._live, name="time-log", daemon=True).start()

    def enter(self, section: Section, step: int) -> None:
        """The training thread enters a section, or the next step; see `Sections`."""
        with self._lock:
            if self._ended.is_set():
                return  # a second Ctrl-C ends the run beside the training thread
            now = time.monotonic()
            before, spent = self._section, now - self._since
            is_slow = before == "step" and self._is_slow(spent)
            if is_slow:
                # What was gathered before it is another event, or the average would hide the stall.
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

    def began(self, step: int) -> None:
        """The attempt resumes from a state of so many updates."""
        with self._lock:
            self._step = step

    def end(self) -> None:
        """The attempt is over: writes what is gathered, and removes the file that says that it lives."""
        self._ended.set()
        with self._lock:
            now = time.monotonic()
            self._seconds[self._section] = self._seconds.get(self._section, 0.0) + now - self._since
            self._since = now
            self._flush(now)
            with contextlib.suppress(OSError):
                self._alive_path.unlink()

    def _is_slow(self, seconds: float) -> bool:
        typical = self._typical
        slow = typical is not None and seconds > typical * STALL_FACTOR + STALL_SECONDS
        if not slow:
            self._typical = seconds if typical is None else typical + 0.1 * (seconds - typical)
        return slow

    def _flush(self, now: float) -> None:
        if self._seconds:
            seconds = {name: round(value, 6) for name, value in self._seconds.items()}
            self._events.write("time_spent", sections=seconds, steps=self._steps, step=self._step)
        self._seconds, self._steps, self._flushed = {}, 0, now

    def _live(self) -> None:
        while not self._ended.wait(_GATHER_SECONDS):
            with self._lock:
                if not self._ended.is_set():
                    self._sign()

    def _sign(self) -> None:
        sign = {"lost": self._events.attempt, "alive_until": round(time.time(), 6), "section": self._section}
        with contextlib.suppress(OSError):
            beside = self._alive_path.with_name(f"{ALIVE}.partial")
            beside.write_text(json.dumps(sign))
            beside.replace(self._alive_path)


def time_records(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns what an account is drawn from, in order: records with `kind`, `attempt` and `time`."""
    records: list[dict[str, Any]] = []
    for event in events:
        kind = _KINDS.get(str(event.get("event")))
        if kind == "lost":
            records.append({**event, "kind": kind, "attempt": event.get("lost"), "time": event.get("alive_until")})
        elif kind == "spent":
            records.append({**event, "kind": kind, "seconds": event.get("sections")})
        elif kind is not None:
            records.append({**event, "kind": kind})
    return records


def read_time_records(run: Path) -> list[dict[str, Any]]:
    """Returns the records of a run's folder; of a long log only the lines that count are parsed. Raises OSError."""
    return time_records(read_kinds(run / EVENTS, _KINDS))


def _last_sign(path: Path) -> dict[str, Any] | None:
    """Returns when an attempt that never ended was last alive, by the file that it left."""
    try:
        sign = guarded_json(path, most=_MOST_SIGN_BYTES)
        return {name: sign[name] for name in ("lost", "alive_until", "section")}
    except (OSError, UnreadableFileError, KeyError, TypeError):
        return None


def process_started() -> float:
    """Returns seconds since the epoch; where the system doesn't tell, when this module was imported."""
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        ticks = int(fields[_START])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED
    return time.time() - age
