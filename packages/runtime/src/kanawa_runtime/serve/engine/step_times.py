"""How long steps take: the next one is put together shortly before the device needs it, with all asked by then."""

import time
from collections.abc import Callable, Hashable

#: How much of a longer time counts; a shorter one counts whole, so that the device is rather early than late.
_SHARE = 0.25
#: Added to the time that putting a step together takes; on a busy machine a thread that sleeps wakes later.
_LEAST_SLACK_SECONDS, _MOST_SLACK_SECONDS = 0.0015, 0.02
#: By what the slack grows where a step came too late, and shrinks otherwise.
_GROWS, _SHRINKS = 2.0, 0.95
#: Between two looks at the device.
_POLL_SECONDS = 0.001


class StepTimes:
    """Seconds of each kind of step, learned as they run; one step runs at a time, and the next may wait for it."""

    def __init__(self) -> None:
        self._seconds: dict[Hashable, float] = {}
        #: Of a step that only decodes, for each token of a row; 0 before there was one.
        self.decode_seconds = 0.0
        self._to_send, self._slack = 0.0, _LEAST_SLACK_SECONDS
        self._began = 0.0

    def begin(self) -> None:
        """Says that the device begins a step now."""
        self._began = time.perf_counter()

    def end(self, kind: Hashable, *, exactly: bool, decoded: int | None = None) -> None:
        """Says that a step has ended: now, or, unless `exactly`, some time before. The device begins the next one.

        `decoded` are the tokens of a row that it decoded, where it did nothing else.
        """
        # Where it ended before the next one was sent, the device was idle.
        self._slack *= _SHRINKS if exactly else _GROWS
        self._slack = min(max(self._slack, _LEAST_SLACK_SECONDS), _MOST_SLACK_SECONDS)
        now = time.perf_counter()
        took, known = now - self._began, self._seconds.get(kind)
        if known is None or took < known:
            self._seconds[kind] = took
        elif exactly:
            self._seconds[kind] = known + _SHARE * (took - known)
        if decoded:
            self.decode_seconds = self._seconds[kind] / decoded
        self._began = now

    def count_sending(self, seconds: float) -> None:
        """Counts how long the host took to put a step together and send it."""
        self._to_send += _SHARE * (seconds - self._to_send)

    def wait_until_due(self, kind: Hashable, has_ended: Callable[[], bool]) -> None:
        """Returns when it is time to put together what follows the step that runs; at once if its kind is unknown."""
        due = self._began + self._seconds.get(kind, 0.0) - self._to_send - self._slack
        while not has_ended() and (left := due - time.perf_counter()) > 0:
            time.sleep(min(left, _POLL_SECONDS))
