"""Whether the device waits for the host: at a healthy step's end the host waits for the device."""

import collections

#: Of this many steps, so many must have been finished before anybody asked.
_WINDOW, _MOST = 50, 0.9
#: Shorter steps are mostly host time on any machine.
LEAST_SECONDS = 0.01


class Idleness:
    """Takes, for each step, whether the device was done before the host came to read its numbers."""

    def __init__(self) -> None:
        self._steps: collections.deque[tuple[bool, float]] = collections.deque(maxlen=_WINDOW)
        self._is_told = False

    def took(self, *, was_done: bool, step_seconds: float) -> float | None:
        """Returns the share of steps in which the device had to wait, when that is news; again after it was busy."""
        self._steps.append((was_done, step_seconds))
        if len(self._steps) < _WINDOW:
            return None
        share = sum(done for done, _ in self._steps) / _WINDOW
        seconds = sorted(seconds for _, seconds in self._steps)[_WINDOW // 2]
        is_idle = share >= _MOST and seconds >= LEAST_SECONDS
        is_news, self._is_told = is_idle and not self._is_told, is_idle
        return share if is_news else None
