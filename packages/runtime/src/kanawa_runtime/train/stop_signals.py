"""Ctrl-C and SIGTERM mean: finish the step, save, and exit with 42 so that the run's supervisor restarts it.

A second Ctrl-C stops at once. Before the first step there is nothing to finish: a signal ends what is going on.
In a gang, JAX's coordination service makes every process stop at the same step.
"""

import _thread
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

from kanawa.errors import Interruption

#: What people call the signals.
NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
#: A wrapper such as `uv run` forwards the Ctrl-C that the terminal already gave to its whole group: one press, twice.
_SAME_PRESS_SECONDS = 0.05


class RunStopped(Interruption):  # no error, like KeyboardInterrupt: nothing that catches errors may take it
    """A signal came where nothing needs to be finished; raised in the main thread."""


class StopSignals:
    """Watches SIGINT and SIGTERM while active.

    `on_first(name)` is called once, and `on_second(name)` at a second Ctrl-C, from a thread of its own: Python's own
    handlers wait for the main thread, which a compiler may hold for minutes. `on_second` should end the process.
    """

    def __init__(
        self,
        on_first: Callable[[str], None] = lambda name: None,
        on_second: Callable[[str], None] = lambda name: os._exit(128 + signal.SIGINT),
        *,
        gang: bool = False,
    ) -> None:
        self.on_first = on_first
        self.on_second = on_second
        self.signal: signal.Signals | None = None
        self._gang = gang
        self._raising = False
        self._previous: dict[signal.Signals, Any] = {}
        self._presses = 0
        self._pressed = 0.0
        self._wakeup: tuple[socket.socket, socket.socket] | None = None
        self._outer_wakeup = -1
        self._interrupts = self._has_interrupted = False
        self._watcher: threading.Thread | None = None

    @property
    def name(self) -> str:
        """Returns what to call the signal that asked to stop; empty if none did."""
        return "" if self.signal is None else NAMES[self.signal]

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is not threading.main_thread():
            return self
        read, write = socket.socketpair()
        write.setblocking(False)
        self._wakeup = (read, write)
        self._watcher = threading.Thread(target=self._watch, args=(read,), name="stop-signals", daemon=True)
        self._watcher.start()
        # In a gang the coordination service holds the SIGTERM handler; replacing it would cut this process off.
        for number in (signal.SIGINT,) if self._gang else (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._on_signal)
        self._outer_wakeup = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._wakeup is None:
            return
        # A notebook's event loop has one of its own.
        signal.set_wakeup_fd(self._outer_wakeup)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        read, write = self._wakeup
        write.close()
        if self._watcher is not None:
            self._watcher.join()
        read.close()
        self._wakeup = None

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, a signal raises RunStopped in the main thread, as one that came before does at once."""
        if self._gang:
            yield
            return
        self._raising = True
        try:
            if self.signal is not None:
                raise RunStopped
            yield
            if self.signal is not None:
                # Some libraries catch everything while they are imported.
                raise RunStopped
        finally:
            self._raising = False

    @property
    def asked(self) -> bool:
        """Returns whether this process may stop where it is; never in a gang, which stops between steps, together."""
        return self.signal is not None and not self._gang

    def reached(self, step: int) -> bool:
        """Returns whether to save and stop after this step; every process of a gang must ask at every step."""
        if not self._gang:
            return self.signal is not None
        from jax.experimental import multihost_utils

        reached = multihost_utils.reached_preemption_sync_point(step)
        if reached and self.signal is None:
            self.signal = signal.SIGTERM
        return reached

    def interrupt_main(self) -> None:
        """Raises KeyboardInterrupt in the main thread, once it executes Python again; for a process of others."""
        if not self._has_interrupted:
            # The watcher sees this as one more press.
            self._has_interrupted = self._interrupts = True
            _thread.interrupt_main()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Runs in the main thread, once it executes Python again."""
        del frame
        if self._interrupts:
            # Once: this runs for the key press and for `interrupt_main`, and what is being closed must not be cut off.
            self._interrupts = False
            raise KeyboardInterrupt
        if self.signal is None:
            self.signal = signal.Signals(number)
        if self._raising:
            self._raising = False
            raise RunStopped

    def _watch(self, read: socket.socket) -> None:
        """Runs on its own thread: sees each signal as it arrives."""
        has_logged = False
        while received := read.recv(1):
            number = signal.Signals(received[0])
            if number not in NAMES:
                continue
            if number is signal.SIGINT and self._is_second():
                self.on_second(NAMES[number])
            if not has_logged:
                has_logged = True
                if self._gang and number is signal.SIGINT:
                    # The coordination service knows SIGTERM only; it tells the other processes.
                    os.kill(os.getpid(), signal.SIGTERM)
                self.on_first(NAMES[number])

    def _is_second(self) -> bool:
        now = time.monotonic()
        same, self._pressed = self._presses > 0 and now - self._pressed < _SAME_PRESS_SECONDS, now
        self._presses += not same
        return self._presses > 1
