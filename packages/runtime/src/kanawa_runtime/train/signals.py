"""SIGTERM means: finish the step, save, and exit with 42 so that whoever started the run starts it again.

In a gang, JAX's coordination service makes every process stop at the same step.
"""

import signal
import threading
from types import FrameType, TracebackType

import jax


class Preemption:
    """Watches for SIGTERM while active; `reached(step)` must be asked at every step by every process."""

    def __init__(self) -> None:
        self._flag = threading.Event()
        self._previous: object = None
        self._gang = jax.process_count() > 1

    def __enter__(self) -> "Preemption":
        # In a gang the coordination service holds the SIGTERM handler; replacing it would cut this process off.
        if not self._gang and threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._flag.set()

    def reached(self, step: int) -> bool:
        """Returns whether to save and stop after this step."""
        if not self._gang:
            return self._flag.is_set()
        from jax.experimental import multihost_utils

        return multihost_utils.reached_preemption_sync_point(step)
