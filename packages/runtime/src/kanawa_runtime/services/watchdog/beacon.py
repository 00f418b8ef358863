"""How long a section may take before it counts as a hang, and the page of memory on which another process reads it."""

import mmap
import tempfile
import threading
import time

from kanawa_runtime.goodput.sections import Section
from kanawa_runtime.services.watchdog.sidecar import LAYOUT, PAGE_BYTES

#: Sections that come at every step: what is usual for them shows after a few.
_FREQUENT: tuple[Section, ...] = ("step", "data")
_FIRST, _ENOUGH = 2, 10
_FACTOR = 10.0


class Allowance:
    """Seconds by section. Steps and waits for data are learned: ten times the slowest seen, at least `least_seconds`.

    Both by the slowest of either: before a save or an evaluation, the wait for data ends with one for the last step.
    `step_seconds` is what they are allowed at most, and before ten of them were seen; `section_seconds` goes for all
    other sections, a compilation, a save or an evaluation, and for the first two steps, which wait for the slowest to
    compile.
    """

    def __init__(self, step_seconds: float, section_seconds: float, least_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._section_seconds = section_seconds
        self._least_seconds = least_seconds
        self._seen = dict.fromkeys(_FREQUENT, 0)
        self._slowest = dict.fromkeys(_FREQUENT, 0.0)

    def took(self, section: Section, seconds: float) -> None:
        """A section has ended."""
        if section in self._seen:
            self._seen[section] += 1
            self._slowest[section] = max(self._slowest[section], seconds)

    def of(self, section: Section) -> float:
        """Returns the seconds that a section may take."""
        if section not in self._seen:
            return self._section_seconds
        # The first ones wait for others that still compile.
        if self._seen["step"] < _FIRST:
            return self._section_seconds
        if self._seen[section] < _ENOUGH:
            return self._step_seconds
        return min(self._step_seconds, max(self._least_seconds, _FACTOR * max(self._slowest.values())))


class Beacon:
    """A page of memory that another process reads without this one's help.

    Written by the training thread at each section, and by a thread that shows that Python runs at all.
    """

    def __init__(self) -> None:
        # Without a name: nothing is left of it when this process is killed.
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
        self.file.truncate(PAGE_BYTES)
        self._page = mmap.mmap(self.file.fileno(), PAGE_BYTES)
        self._lock = threading.Lock()
        self._turn = 0
        self._fields = (0.0, 0.0, 0, b"")
        self._closed = threading.Event()

    def enter(self, section: str, step: int, allowed_seconds: float) -> None:
        """The training thread is in a section from now on, for so long at most."""
        now = time.monotonic()
        with self._lock:
            self._fields = (now, now + allowed_seconds, step, section.encode())
            self._write()

    def beat(self, every_seconds: float) -> None:
        """Shows, until closed, that some thread of this process gets the interpreter's lock."""
        while not self._closed.wait(every_seconds):
            with self._lock:
                if not self._closed.is_set():
                    self._write()

    def close(self) -> None:
        """Ends the beat and removes the page."""
        self._closed.set()
        with self._lock:
            self._page.close()
            self.file.close()

    def _write(self) -> None:
        # Odd while it is being written: a reader takes nothing from a page that changes under it.
        entered, deadline, step, section = self._fields
        rest = (entered, deadline, time.monotonic(), step, section)
        self._page[: LAYOUT.size] = LAYOUT.pack(self._turn + 1, *rest)
        self._turn += 2
        self._page[: LAYOUT.size] = LAYOUT.pack(self._turn, *rest)
