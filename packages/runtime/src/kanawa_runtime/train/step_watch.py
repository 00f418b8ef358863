"""What the steps of a run show besides their loss: spikes, a device that waits for the host, a process that is slow.

In a gang all steps take the same time, that of the slowest. What differs is the part in which a process does not wait
for a device: there a slow host, a slow disk or a noisy neighbour shows. Each process puts the median of a window of
steps where the first one reads it; no process waits for another."""

import collections
import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

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


#: Of this many steps, so many must have been finished before anybody asked.
_WINDOW, _MOST = 50, 0.9
#: Shorter steps are mostly host time on any machine.
_LEAST_IDLE_SECONDS = 0.01


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
        is_idle = share >= _MOST and seconds >= _LEAST_IDLE_SECONDS
        is_news, self._is_told = is_idle and not self._is_told, is_idle
        return share if is_news else None


#: One slow window happens to everybody, say while a checkpoint is written.
IN_A_ROW = 3
#: Shares of a step's time say little where a step takes next to none.
LEAST_SECONDS = 1e-3


@dataclasses.dataclass(frozen=True)
class Window:
    """What all processes said of a window: own seconds a step by rank, and the seconds of a whole step."""

    own_seconds: tuple[float, ...]
    step_seconds: float


@dataclasses.dataclass(frozen=True)
class Straggler:
    """A process that is slow: its own seconds a step, and those of the median."""

    rank: int
    own_seconds: float
    median_seconds: float


def stragglers(windows: Sequence[Window], slow_share: float) -> list[Straggler]:
    """Returns who was slower than the median by `slow_share` of a step in each of the last three windows."""
    recent = windows[-IN_A_ROW:]
    if len(recent) < IN_A_ROW:
        return []
    slow = [_slow(window, slow_share) for window in recent]
    last = recent[-1]
    median = statistics.median_low(last.own_seconds)
    return [
        Straggler(rank, last.own_seconds[rank], median)
        for rank in range(len(last.own_seconds))
        if all(rank in ranks for ranks in slow)
    ]


def _slow(window: Window, slow_share: float) -> set[int]:
    # The low median: of two, the quicker one is what the other could be.
    median = statistics.median_low(window.own_seconds)
    allowed = median + max(LEAST_SECONDS, slow_share * window.step_seconds)
    return {rank for rank, seconds in enumerate(window.own_seconds) if seconds > allowed}


class Pacer:
    """Takes each step's own seconds; every window the first process looks at what all said of the one before.

    `on_straggler` is called once for each; again after it has been on pace for a while.
    """

    def __init__(
        self, window: int, slow_share: float, attempt: int, on_straggler: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._window = window
        self._slow_share = slow_share
        self._prefix = f"kanawa/pace/{attempt}"
        self._on_straggler = on_straggler
        self._own: list[float] = []
        self._steps: list[float] = []
        self._count = 0
        self._history: list[Window] = []
        self._named: set[int] = set()

    def took(self, step: int, own_seconds: float, step_seconds: float) -> None:
        """A step has ended, which took so long, of it so much of this process's own."""
        self._own.append(own_seconds)
        self._steps.append(step_seconds)
        if len(self._own) < self._window:
            return
        own, whole = statistics.median(self._own), statistics.median(self._steps)
        self._own, self._steps = [], []
        # A gang that is about to end may have lost the service that holds the numbers: the loop finds that out itself.
        with contextlib.suppress(RuntimeError):
            _client().key_value_set(f"{self._prefix}/{self._count}/{jax.process_index()}", repr(own))
            if jax.process_index() == 0 and self._count > 0:
                self._look(self._count - 1, whole, step)
        self._count += 1

    def _look(self, number: int, step_seconds: float, step: int) -> None:
        folder = f"{self._prefix}/{number}/"
        said = {int(key.rpartition("/")[2]): float(value) for key, value in _client().key_value_dir_get(folder)}
        _client().key_value_delete(folder)
        if len(said) < jax.process_count():
            # Somebody is a whole window behind, which in a gang of collectives can't be: it has only just said it.
            return
        own = tuple(said[rank] for rank in sorted(said))
        self._history = [*self._history, Window(own, step_seconds)][-IN_A_ROW:]
        slow = stragglers(self._history, self._slow_share)
        for one in slow:
            if one.rank not in self._named:
                self._on_straggler({"step": step, "step_seconds": step_seconds, **dataclasses.asdict(one)})
        self._named = {one.rank for one in slow}


def _client() -> Any:
    # jax exposes no public key-value store (as of 0.11).
    from jax._src import distributed

    return distributed.global_state.client
