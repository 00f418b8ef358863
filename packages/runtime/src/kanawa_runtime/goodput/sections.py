"""What the training thread is doing, by name: reported to the time log, the watchdog and other services."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Literal

#: `setup` is everything else; `step` includes waiting for the device.
Section = Literal["setup", "initialise", "restore", "compile", "data", "step", "check", "save", "evaluate", "end"]

Listener = Callable[[Section, int], None]


class Sections:
    """The section that the training thread is in. Listeners are called on that thread at every change and every step.

    `relabel` changes the name of the current section.
    """

    def __init__(self, *listeners: Listener, relabel: Callable[[Section], None] = lambda name: None) -> None:
        self._listeners = listeners
        self._relabel = relabel
        self._stack: list[Section] = ["setup"]
        self._step = 0
        self._tell()

    def enter(self, name: Section, step: int) -> None:
        """The section is now `name`, before or at `step` updates; entered again at every step, so that it is news."""
        self._stack, self._step = [name], step
        self._tell()

    @contextlib.contextmanager
    def within(self, name: Section) -> Iterator[None]:
        """Inside, the section is `name`; afterwards it is the one before."""
        self._stack.append(name)
        self._tell()
        try:
            yield
        finally:
            # After an error the loop has started a new stack.
            if len(self._stack) > 1:
                self._stack.pop()
            self._tell()

    def was(self, name: Section) -> None:
        """Renames the current section, such as a wait for data during which the device computed."""
        self._relabel(name)

    def _tell(self) -> None:
        for listener in self._listeners:
            listener(self._stack[-1], self._step)
