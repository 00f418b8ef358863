"""Whether a loss is far above those before it."""

import collections
import statistics

#: Where a loss hardly moves, its spread says nothing: a hundredth of it counts as spread at least.
_LEAST_SPREAD = 0.01


class Spikes:
    """Compares each loss with the `window` before it: above the median by `factor` times the median deviation."""

    def __init__(self, factor: float | None, window: int) -> None:
        self._factor = factor
        self._losses: collections.deque[float] = collections.deque(maxlen=window)

    def take(self, loss: float) -> float | None:
        """Takes a finite loss; returns what was the limit, where the loss is a spike, which later ones don't count."""
        limit = self._limit()
        if limit is not None and loss > limit:
            return limit
        self._losses.append(loss)
        return None

    def _limit(self) -> float | None:
        if self._factor is None or len(self._losses) < (self._losses.maxlen or 0):
            return None
        median = statistics.median(self._losses)
        spread = statistics.median(abs(loss - median) for loss in self._losses)
        return median + self._factor * max(spread, _LEAST_SPREAD * abs(median))
