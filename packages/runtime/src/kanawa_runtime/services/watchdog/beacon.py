"""A page of memory in which a process says what it is doing, for another one to read without its help."""

import contextlib
import mmap
import os
import tempfile
import threading
import time

from kanawa_runtime.services.watchdog.sidecar import LAYOUT, PAGE_BYTES


class Beacon:
    """Written by the training thread at each section, and by a thread that shows that Python runs at all."""

    def __init__(self) -> None:
        descriptor, self.path = tempfile.mkstemp(prefix="kanawa-beacon-")
        os.ftruncate(descriptor, PAGE_BYTES)
        self._page = mmap.mmap(descriptor, PAGE_BYTES)
        os.close(descriptor)
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
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def _write(self) -> None:
        # Odd while it is being written: a reader takes nothing from a page that changes under it.
        entered, deadline, step, section = self._fields
        rest = (entered, deadline, time.monotonic(), step, section)
        self._page[: LAYOUT.size] = LAYOUT.pack(self._turn + 1, *rest)
        self._turn += 2
        self._page[: LAYOUT.size] = LAYOUT.pack(self._turn, *rest)
