"""Which microbatch each stage works on in each tick, and what share of a step stages wait.

All stages run one program in step, so a tick takes as long for a stage that waits as for one that works. Legend:
S stages, M microbatches, R rounds, F a forward, B a backward of inputs, W a backward of weights.
"""

import dataclasses
import itertools

import jax
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


def idle_fraction(num_layers: int, stages: int, microbatches: int, rounds: int = 1) -> float:
    """Returns the share of a step in which places of layers have nothing to do, for any times of forward and backward.

    (S - 1) / (R M + S - 1) where layers fill all places and M is at least S.
    """
    places, circles = Places(num_layers, stages, rounds), Circles(stages, microbatches, rounds)
    return 1 - microbatches * num_layers / (circles.ticks * stages * places.per_run)


@dataclasses.dataclass(frozen=True)
class EarlyBackwards:
    """1F1B: stage s takes microbatch m forward in tick m + s, and back in tick m + 2 (S - 1) - s.

    With `split`, W waits until B has reached the first stage: then all stages do it in the same tick, so none waits.
    """

    stages: int
    microbatches: int
    split: bool = False

    @property
    def ranges(self) -> dict[str, range]:
        """Returns the ticks in which some stage has work of each kind; the head runs once a microbatch."""
        last, count = self.stages - 1, self.microbatches
        ranges = {
            "forward": range(last + count),
            "head": range(last, last + count),
            "backward": range(last, 2 * last + count),
        }
        return ranges | ({"weights": range(2 * last, 2 * last + count)} if self.split else {})

    def loops(self) -> list[tuple[range, frozenset[str]]]:
        """Returns (ticks, kinds of work in each) of the loops that run one after another."""
        ranges = self.ranges
        ends = sorted({end for ticks in ranges.values() for end in (ticks.start, ticks.stop)})
        spans = [range(start, stop) for start, stop in itertools.pairwise(ends)]
        return [(span, frozenset(kind for kind, ticks in ranges.items() if span.start in ticks)) for span in spans]

    def backward_of(self, tick: jax.Array, stage: jax.Array) -> jax.Array:
        """Returns the microbatch that a stage takes back; less than 0 or at least M where it waits."""
        return tick - 2 * (self.stages - 1) + stage

    def weights_of(self, tick: jax.Array) -> jax.Array:
        """Returns the microbatch of whose weights all stages take the gradients."""
        return tick - 2 * (self.stages - 1)

    def idle_fraction(self, num_layers: int) -> float:
        """Returns the share of a step's places without work.

        F, the forward again, B and W count the same. (S - 1) / (M + S - 1), or 3 (S - 1) / (4 M + 3 (S - 1)) with
        `split`, where layers fill all places.
        """
        ticks = {kind: len(ticks) for kind, ticks in self.ranges.items()}
        # The forward is run again before the backward.
        passes = ticks["forward"] + 2 * ticks["backward"] + ticks.get("weights", ticks["backward"])
        places = self.stages * Places(num_layers, self.stages).per_run
        return 1 - 4 * self.microbatches * num_layers / (passes * places)
