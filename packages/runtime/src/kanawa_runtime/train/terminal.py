"""The screen on a terminal: one live line, redrawn a few times a second, under the lines that stay."""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any

from kanawa.cli.output import write_message

from kanawa_runtime.train.screen import LineScreen, Pace, Screen, human_duration

_REDRAWS_PER_SECOND = 8
_WIDEST_BAR, _NARROWEST_BAR = 28, 6
_SPINNER = "|/-\\"


class TerminalScreen(Screen):
    """A spinner with the phase and its time; then a bar. Fits any width: what has no room is left out, last part first.

    rich keeps the live line apart from what else is written, also when the window changes its size.
    """

    def __init__(self, file: IO[str] | None = None, width: int | None = None) -> None:
        """Draws on the error stream, or on `file`; `width` columns, or as many as there are."""
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=file is None, file=file, width=width, force_terminal=file is not None or None)
        self._error_stream = sys.stderr
        self._phase: tuple[str, float] | None = None
        self._pace: Pace | None = None
        self._parts: list[str] = []
        self._live = Live(
            get_renderable=self._render,
            console=self._console,
            refresh_per_second=_REDRAWS_PER_SECOND,
            # What is on stdout is for machines, and would otherwise come out on the error stream.
            redirect_stdout=False,
        )
        self._live.start()
        self._handlers = _move_logging(self._error_stream, sys.stderr)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Shows the phase in place of the live line; within another phase, until that continues."""
        outer, self._phase = self._phase, (name, time.monotonic())
        try:
            yield
        finally:
            self._phase = outer

    def say(self, text: str) -> None:
        """Prints a line above the live one."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def begin(self, total: int, start: int) -> None:
        """Shows the bar from now on."""
        self._pace = Pace(total, start)

    def step(self, record: Mapping[str, Any]) -> None:
        """Moves the bar."""
        if self._pace is not None:
            self._pace.take(record)
            self._parts = self._pace.parts(record)

    def close(self) -> None:
        """Draws the last state and gives the cursor back."""
        self._phase = None
        self._live.stop()
        for handler in self._handlers:
            handler.setStream(self._error_stream)
        self._handlers = []

    def _render(self) -> Any:
        from rich.text import Text

        return Text(self.live_line(self._console.width), no_wrap=True, overflow="crop")

    def live_line(self, width: int) -> str:
        """Returns what the live line shows in `width` columns; never longer."""
        # One column stays free: some terminals wrap a line that fills the last one, and the next redraw is then off.
        room = max(1, width - 1)
        if self._phase is not None:
            name, begin = self._phase
            elapsed = time.monotonic() - begin
            turn = _SPINNER[int(elapsed * _REDRAWS_PER_SECOND / 2) % len(_SPINNER)]
            return f"{turn} {name} {human_duration(elapsed)}"[:room]
        if self._pace is None:
            return ""
        return bar_line(self._pace, self._parts, room)


def _move_logging(old: Any, new: Any) -> list[logging.StreamHandler[Any]]:
    """Has log handlers that write to `old` write to `new`, where the live line isn't in the way; returns them."""
    handlers = [h for h in logging.getLogger().handlers if isinstance(h, logging.StreamHandler) and h.stream is old]
    for handler in handlers:
        handler.setStream(new)
    return handlers


def bar_line(pace: Pace, parts: list[str], room: int) -> str:
    """Returns bar, steps, and of the parts as many as fit `room` columns, in their order."""
    texts = [pace.steps]
    used = len(pace.steps) + 1
    for part in parts:
        # The bar shrinks before a part is left out, and the first part (the loss) needs only the narrowest.
        if used + 2 + len(part) + _NARROWEST_BAR > room:
            break
        texts.append(part)
        used += 2 + len(part)
    bar = max(0, min(_WIDEST_BAR, room - used))
    filled = 0 if not pace.total else min(bar, bar * pace.done // pace.total)
    return f"{'━' * filled}{'╌' * (bar - filled)} {'  '.join(texts)}"[:room]


def screen_here() -> Screen:
    """Returns what shows progress where this process writes: a bar on a terminal, lines in a notebook or a log."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return TerminalScreen()
    return LineScreen(write_message)
