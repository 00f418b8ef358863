"""What the command line is busy with: one moving line on the error stream, for waits of seconds before the first word.

Any code says `with stage("composing llama2-7b"):`. Without a terminal, or outside the command line, that does nothing.
Other output replaces the line, which is drawn again below it.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, TextIO

_FRAMES = "|/-\\"
_CLEAR = "\r\x1b[K"
#: How often a log says again what it waits for.
_AGAIN_SECONDS = 60.0
_line: ContextVar[_Line | None] = ContextVar("kanawa_status_line", default=None)


@contextlib.contextmanager
def stage(text: str) -> Iterator[None]:
    """Says that `text` is going on until the block ends; stages nest, and the innermost is shown."""
    line = _line.get()
    if line is None:
        yield
        return
    line.enter(text)
    try:
        yield
    finally:
        line.leave()


def waits_for(text: str) -> None:
    """Says what the innermost stage waits for now, such as another process and what that is busy with."""
    line = _line.get()
    if line is not None:
        line.waits_for(text)


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Takes the line away while something else draws, such as a progress bar; stages inside are mute."""
    line, token = _line.get(), _line.set(None)
    if line is not None:
        line.silence()
    try:
        yield
    finally:
        _line.reset(token)


@contextlib.contextmanager
def status_line(stream: TextIO | None = None, delay_seconds: float = 0.5) -> Iterator[None]:
    """Shows stages on a terminal for the length of the block; does nothing if the stream is none.

    The delay keeps quick commands from flickering.
    """
    error_stream = sys.stderr if stream is None else stream
    if not error_stream.isatty():
        yield
        return
    with _shown(_Line(error_stream, delay_seconds)) as line:
        outer = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _Aside(sys.stdout, line), _Aside(sys.stderr, line)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = outer


@contextlib.contextmanager
def stage_lines(stream: TextIO | None = None, after_seconds: float = 60.0) -> Iterator[None]:
    """Writes a line a stage once the block has taken `after_seconds`, where there is no terminal for a moving one."""
    error_stream = sys.stderr if stream is None else stream
    if error_stream.isatty() or _line.get() is not None:
        yield
        return
    with _shown(_Log(error_stream, after_seconds)):
        yield


@contextlib.contextmanager
def stages_shown() -> Iterator[None]:
    """Shows stages for the length of the block, also where no command line does: in a script, in a notebook.

    A moving line on a terminal; elsewhere a line a stage, once the block has taken three seconds.
    """
    if _line.get() is not None:
        yield
        return
    with status_line(), stage_lines(after_seconds=3.0):
        yield


@contextlib.contextmanager
def _shown(line: _Line) -> Iterator[_Line]:
    token = _line.set(line)
    try:
        yield line
    finally:
        _line.reset(token)
        line.close()


class _Line:
    """The line, drawn by a thread of its own: imports and compilers leave the main one no time.

    Args:
        stream: a terminal.
        delay_seconds: how long a stage lasts before it is shown.
    """

    def __init__(self, stream: TextIO, delay_seconds: float) -> None:
        """Starts the thread; nothing is drawn before a stage is entered."""
        self._stream = stream
        self._delay = delay_seconds
        self._stages: list[str] = []
        self._begin = self._since = time.monotonic()
        self._silent = True
        self._drawn = False
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._draw_often, name="kanawa-status", daemon=True)
        self._thread.start()

    def enter(self, text: str) -> None:
        """Begins a stage."""
        with self._lock:
            if self._silent or not self._stages:
                self._since = time.monotonic()
            self._stages.append(text)
            self._silent = False

    def leave(self) -> None:
        """Ends the innermost stage."""
        with self._lock:
            self._stages.pop()
            if not self._stages:
                self.silence()

    def waits_for(self, text: str) -> None:
        """Shows a text in place of the innermost stage's."""
        with self._lock:
            if self._stages:
                self._stages[-1] = text

    def silence(self) -> None:
        """Takes the line away until another stage begins: somebody has something to say."""
        with self._lock:
            self._silent = True
            if self._drawn:
                self._write(_CLEAR)
                self._drawn = False

    def close(self) -> None:
        """Takes the line away for good."""
        self._closed.set()
        self._thread.join()
        self.silence()

    def _draw_often(self) -> None:
        frames = itertools.cycle(_FRAMES)
        while not self._closed.wait(0.1):
            with self._lock:
                if self._stages and not self._silent and time.monotonic() - self._since >= self._delay:
                    self._draw(next(frames))

    def _draw(self, frame: str) -> None:
        # A line that wraps can't be cleared again, so it ends before the last column.
        columns = max(10, shutil.get_terminal_size().columns - 1)
        text, waited = self._stages[-1], time.monotonic() - self._since
        seconds = f" {waited:.0f} s" if waited >= 1 else ""
        room = columns - len(seconds) - 2
        shown = text if len(text) <= room else f"{text[: room - 1]}…"
        self._write(f"{_CLEAR}{frame} {shown}{seconds}")
        self._drawn = True

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal, or the reader, has closed
            self._stream.write(text)
            self._stream.flush()


class _Log(_Line):
    """Outermost stages as lines of a log, for commands that take long enough for somebody to wonder.

    The delay is that of the first line, which names the running stage; what is inside a stage passes by too quickly. A
    stage that goes on is named every minute, with all inside it and the processor time, which says whether it waits.
    """

    _wrote = 0.0

    def enter(self, text: str) -> None:
        """Begins a stage, and writes it where the delay is over."""
        with self._lock:
            super().enter(text)
            self._since = self._begin  # the delay counts from the start of the command, not of the stage
            if len(self._stages) == 1:
                self._drawn = False
                if time.monotonic() - self._begin >= self._delay:
                    self._draw("")

    def silence(self) -> None:
        """Does nothing: what is written stays."""

    def waits_for(self, text: str) -> None:
        """Writes a line of its own."""
        with self._lock:
            super().waits_for(text)
            if self._drawn:
                self._line(text)

    def _draw(self, frame: str) -> None:
        if not self._drawn:
            self._drawn = True
            self._line(self._stages[0])
        elif time.monotonic() - self._wrote >= _AGAIN_SECONDS:
            used = f"{time.process_time():.0f} s of this process's processor time so far"
            self._line(f"still {', '.join(self._stages)} ({used})")

    def _line(self, text: str) -> None:
        self._wrote = time.monotonic()
        self._write(f"{self._wrote - self._begin:.0f} s: {text}\n")


class _Aside:
    """A standard stream that takes the line away before anything is written to it."""

    def __init__(self, stream: TextIO, line: _Line) -> None:
        self._aside_stream, self._aside_line = stream, line

    def write(self, text: str) -> int:
        """Writes where the line was."""
        self._aside_line.silence()
        return self._aside_stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._aside_stream, name)
