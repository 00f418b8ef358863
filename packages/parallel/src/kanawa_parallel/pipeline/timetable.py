"""Which microbatch each stage works on in each tick, and what share of a step stages wait.

All stages run one program in step, so a tick takes as long for a stage that waits as for one that works. Legend:
S stages, M microbatches, R rounds, F a forward, B a backward of inputs, W a backward of weights.
"""

import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import numpy as np

from kanawa_parallel.pipeline.places import Places


@dataclasses.dataclass(frozen=True)
class Circles:
    """Forwards around the stages: microbatch m of round r enters in tick r P + m, and each tick moves it on.

    The period P is M, or S where that is more: a microbatch comes back to the first stage after S ticks.
    """

    stages: int
    microbatches: int
    rounds: int = 1

    @property
    def period(self) -> int:
        """Returns the ticks between two rounds of a microbatch."""
        return self.microbatches if self.rounds == 1 else max(self.microbatches, self.stages)

    @property
    def ticks(self) -> int:
        """Returns how many ticks it takes until the last microbatch has passed the last stage."""
        return (self.rounds - 1) * self.period + self.microbatches + self.stages - 1

    def tick(self, turn: np.ndarray, microbatch: np.ndarray, stage: np.ndarray) -> np.ndarray:
        """Returns the tick in which a stage works on a microbatch of a round."""
        tick: np.ndarray = turn * self.period + microbatch + stage
        return tick


def idle_fraction(places: Places, microbatches: int) -> float:
    """Returns the share of a step in which places of layers have nothing to do, for any times of forward and backward.

    (S - 1) / (R M + S - 1) where layers fill all places and M is at least S.
    """
    circles = Circles(places.stages, microbatches, places.rounds)
    return 1 - microbatches * places.num_layers / (circles.ticks * places.stages * places.per_run)


class Slots(NamedTuple):
    """What the first stage that works on it takes in each slot, int [slots] of NumPy or JAX: -1 in an empty one.

    `before` is the slot of the same microbatch one round earlier, and `forward` that of the same pass forward.
    """

    microbatch: Any
    turn: Any
    before: Any
    forward: Any


@dataclasses.dataclass(frozen=True)
class EarlyBackwards:
    """1F1B: stage s takes slot f forward in tick f + s, and slot b back in tick `lag` + b + S - 1 - s.

    With one round a slot is a microbatch. With more, microbatches go around in groups of at least S (Narayanan et al.
    2021, arXiv:2104.04473, 2.2), as even as can be, so that no slot is empty from S microbatches on. Backwards have the
    same slots with rounds reversed. With `split`, W waits until B has reached the first stage: then all stages do it in
    the same tick, so none waits. With `paired`, a backward needs nothing of its tick's forward: it starts one tick
    later.
    """

    stages: int
    microbatches: int
    split: bool = False
    rounds: int = 1
    paired: bool = False

    @functools.cached_property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """Returns (microbatches, slots of a round) of each group."""
        if self.rounds == 1:
            return ((self.microbatches, self.microbatches),)
        count = max(1, self.microbatches // self.stages)
        least, longer = divmod(self.microbatches, count)
        sizes = (least + (group < longer) for group in range(count))
        return tuple((size, max(size, self.stages)) for size in sizes)

    @property
    def longest(self) -> int:
        """Returns the most slots of a round."""
        return max(slots for _, slots in self.groups)

    @property
    def lag(self) -> int:
        """Returns the tick in which the last stage takes the first slot back."""
        return (self.rounds - 1) * self.longest + self.stages - 1 + self.paired

    @property
    def saved(self) -> int:
        """Returns for how many ticks a stage's inputs are saved: those of the first stage in the first round."""
        return self.lag + self.stages + (self.rounds - 1) * self.longest

    @property
    def returning(self) -> int:
        """Returns for how many slots what left the last stage, or came back to the first, is saved."""
        return max(self.longest - self.stages + 2, self.rounds + 1)

    @functools.cached_property
    def forward_slots(self) -> Slots:
        """Returns the slots of forwards."""
        return self._slots(back=False)

    @functools.cached_property
    def backward_slots(self) -> Slots:
        """Returns the slots of backwards."""
        return self._slots(back=True)

    def _slots(self, *, back: bool) -> Slots:
        rows, start, first = list[tuple[int, int, int, int]](), 0, 0
        for size, length in self.groups:
            for at in range(self.rounds):
                turn = self.rounds - 1 - at if back else at
                for i in range(length):
                    here = len(rows)
                    forward = start + turn * length + i
                    rows.append((first + i if i < size else -1, turn, here - length, forward))
            start, first = len(rows), first + size
        while rows[-1][0] < 0:
            rows.pop()
        return Slots(*(np.array(column, np.int32) for column in zip(*rows, strict=True)))

    @functools.cached_property
    def heads(self) -> np.ndarray:
        """Returns the slots of backwards in which the head runs, in the order of microbatches."""
        slots = self.backward_slots
        at: np.ndarray = np.flatnonzero((slots.turn == self.rounds - 1) & (slots.microbatch >= 0))
        return at

    @property
    def gaps(self) -> bool:
        """Whether slots are empty: with several rounds of fewer microbatches than stages."""
        return bool((self.backward_slots.microbatch < 0).any())

    def tick(self, turn: np.ndarray, microbatch: np.ndarray, stage: np.ndarray) -> np.ndarray:
        """Returns the tick in which a stage takes a microbatch of a round forward."""
        slots = self.forward_slots
        table = np.zeros((self.rounds, self.microbatches), np.int32)
        full = slots.microbatch >= 0
        table[slots.turn[full], slots.microbatch[full]] = np.flatnonzero(full)
        tick: np.ndarray = table[turn, microbatch] + stage
        return tick

    @property
    def ranges(self) -> dict[str, range]:
        """Returns the ticks in which some stage has work of each kind; the head runs once a microbatch."""
        last, count, lag = self.stages - 1, len(self.forward_slots.turn), self.lag
        ranges = {
            "forward": range(last + count),
            "head": range(lag, lag + int(self.heads[-1]) + 1),
            "backward": range(lag, lag + last + count),
        }
        return ranges | ({"weights": range(lag + last, lag + last + count)} if self.split else {})

    def loops(self) -> list[tuple[range, frozenset[str]]]:
        """Returns (ticks, kinds of work in each) of the loops that run one after another."""
        ranges = self.ranges
        ends = sorted({end for ticks in ranges.values() for end in (ticks.start, ticks.stop)})
        spans = [range(start, stop) for start, stop in itertools.pairwise(ends)]
        return [(span, frozenset(kind for kind, ticks in ranges.items() if span.start in ticks)) for span in spans]

    def idle_fraction(self, places: Places) -> float:
        """Returns the share of a step's places without work.

        F, the forward again, B and W count the same. (S - 1) / (R M + S - 1), or 3 (S - 1) / (4 R M + 3 (S - 1)) with
        `split`, where layers fill all places and M is at least S.
        """
        forward, backward = len(self.ranges["forward"]), len(self.ranges["backward"])
        # The forward is run again before the backward; W is run in full slots only.
        passes = forward + 2 * backward + (self.rounds * self.microbatches if self.split else backward)
        return 1 - 4 * self.microbatches * places.num_layers / (passes * places.stages * places.per_run)
