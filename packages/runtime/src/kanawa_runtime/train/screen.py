"""What a person sees of a run: phases before the first step, then steps, evaluations, and what was saved.

The base says nothing, as processes other than the first do. `LineScreen` says it in plain lines, without control
codes; `kanawa_runtime.train.terminal` draws on a terminal.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kanawa_runtime.train.pace import Pace, human_duration, losses

logger = logging.getLogger(__name__)

_LINE_SECONDS = 10.0
#: A phase is announced once it lasts this long: less than what makes a person doubt, more than most phases take.
_ANNOUNCE_SECONDS = 1.0
#: And said again this often, so that a log that is followed shows life.
_AGAIN_SECONDS = 30.0


class Screen:
    """Says nothing."""

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Shows that `name`, such as "compiling", is going on, with its elapsed time."""
        del name
        yield

    def say(self, text: str) -> None:
        """Shows a line that stays. Safe from any thread."""

    def begin(self, total: int, start: int) -> None:
        """The first step is next."""

    def step(self, record: Mapping[str, Any]) -> None:
        """Takes the record of a `step` event."""

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Takes the record of an `eval` event."""
        self.say(f"step {record.get('step')}: evaluation {'  '.join(losses(record))}")

    def close(self) -> None:
        """Leaves the terminal as it was. Harmless when called again."""


class LineScreen(Screen):
    """Plain lines: phases that take a while, the first step, one each `line_seconds`, the last."""

    def __init__(self, write: Callable[[str], None] = logger.info, line_seconds: float = _LINE_SECONDS) -> None:
        self._write = write
        self._line_seconds = line_seconds
        self._said: float | None = None
        self._pace = Pace(0)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Says the phase once it lasts a second, and then now and then how long it has lasted."""
        ended, begin = threading.Event(), time.monotonic()

        def watch() -> None:
            if ended.wait(_ANNOUNCE_SECONDS):
                return
            self.say(f"{name} ...")
            while not ended.wait(_AGAIN_SECONDS):
                self.say(f"{name} ... {human_duration(time.monotonic() - begin)}")

        watcher = threading.Thread(target=watch, name="phase", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def say(self, text: str) -> None:
        """Writes the line."""
        self._write(text)

    def begin(self, total: int, start: int) -> None:
        """Starts counting."""
        self._pace = Pace(total, start)

    def step(self, record: Mapping[str, Any]) -> None:
        """Writes a line for the first step, one each `line_seconds`, and one for the last."""
        now = self._pace.take(record)
        if self._said is None or now - self._said >= self._line_seconds or self._pace.done >= self._pace.total:
            self._said = now
            self.say(self._pace.line(record))
