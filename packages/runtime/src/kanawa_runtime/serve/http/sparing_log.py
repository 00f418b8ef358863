"""Limits log lines that clients cause: a few of a kind, then a count of the rest, so that they can't fill the disk."""

import logging
import threading
import time
from collections.abc import Callable


class Sparing(logging.Filter):
    """Lets through `most` records of each line of code within `seconds`; the next one says how many were dropped."""

    def __init__(self, most: int = 10, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most = most
        self._seconds = seconds
        self._clock = clock
        #: By line of code: since when, how many were written, how many dropped.
        self._seen: dict[tuple[str, int], tuple[float, int, int]] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a record is written."""
        # What is said differs with each request; where it is said doesn't.
        place, now = (record.pathname, record.lineno), self._clock()
        with self._lock:
            since, written, dropped = self._seen.get(place, (now, 0, 0))
            if now - since >= self._seconds:
                since, written = now, 0
            if written >= self._most:
                self._seen[place] = since, written, dropped + 1
                return False
            self._seen[place] = since, written + 1, 0
        if dropped:
            record.msg = f"{record.getMessage()} ({dropped:,} more like it were dropped)"
            record.args = ()
        return True


def spare_logs() -> None:
    """Has the handlers of this process write sparingly."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(Sparing())
