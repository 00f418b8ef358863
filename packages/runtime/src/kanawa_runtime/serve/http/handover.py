"""From the engine's thread to the server's loop: one wake-up for all outputs of a step."""

import asyncio
import collections
import contextlib
import logging
import time
from collections.abc import Callable

from kanawa_runtime.serve.engine.request import OnOutput, Output

logger = logging.getLogger(__name__)

#: Takes an output and the time.monotonic of the engine's call; runs in the loop.
Receiver = Callable[[Output, float], None]


class Handover:
    """Carries outputs to receivers in the loop, in order. `to` makes the engine's callback."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: collections.deque[tuple[Receiver, Output, float]] = collections.deque()
        self._woken = False

    def to(self, receiver: Receiver) -> OnOutput:
        """Returns an OnOutput that passes on to `receiver`."""

        def pass_on(output: Output) -> None:
            self._waiting.append((receiver, output, time.monotonic()))
            # Waking a loop costs a system call, on the engine's thread: one serves all outputs of a step.
            if not self._woken:
                self._woken = True
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._deliver)

        return pass_on

    def _deliver(self) -> None:
        # Before taking: what comes from here on either is taken below or wakes the loop again.
        self._woken = False
        for _ in range(len(self._waiting)):
            receiver, output, at = self._waiting.popleft()
            try:
                receiver(output, at)
            except Exception:
                # Other requests' outputs follow, and nothing would wake the loop for them again.
                logger.exception("an output of request %s was lost", output.request_id)
