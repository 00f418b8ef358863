"""Ctrl-C and SIGTERM while a command is being prepared: one line and a code of the table, however long imports take."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

from kanawa.errors import Interruption

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


class Terminated(Interruption):
    """SIGTERM came, as KeyboardInterrupt says that Ctrl-C did."""


@contextlib.contextmanager
def early_signals(*, gives_sigterm_back: bool = True) -> Iterator[Callable[[], None]]:
    """Has both signals raise in the main thread; yields a function that raises once more for one that came inside.

    Some libraries catch everything while they are imported, and a signal that comes then would be lost. Only for what
    runs in Python: a compiler keeps handlers waiting, and there SIGTERM's own way of ending the process is better.
    Without `gives_sigterm_back` a handler that was installed inside stays, such as that of JAX's coordination service.
    """
    came: list[type[BaseException]] = []

    def answer(number: int, frame: FrameType | None) -> None:
        del frame
        came.append(KeyboardInterrupt if number == signal.SIGINT else Terminated)
        raise came[-1]

    def check() -> None:
        if came:
            raise came[-1]

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    report = sys.unraisablehook

    def report_others(unraisable: UnraisableHookArgs) -> None:
        # Nothing can be raised from a callback of the garbage collector: `check` raises it later.
        if not issubclass(unraisable.exc_type, (KeyboardInterrupt, Terminated)):
            report(unraisable)

    # The embedding program, or `nohup`, may have installed another handler.
    usual = (signal.SIG_DFL, signal.default_int_handler)
    answered = [number for number, handler in previous.items() if handler in usual]
    for number in answered:
        signal.signal(number, answer)
    sys.unraisablehook = report_others
    try:
        yield check
    finally:
        sys.unraisablehook = report
        for number in answered:
            if number == signal.SIGINT or gives_sigterm_back:
                signal.signal(number, previous[number])
