"""Pipeline schedules as tables: which microbatch each stage works on at each tick, forward or backward.

Legend: S stages, M microbatches, R rounds (a stage holds R separate runs of layers).
"""

import dataclasses
from typing import Literal, NamedTuple


class Work(NamedTuple):
    """One stage's work in one tick: a microbatch's forward or backward through the stage's layers of one round."""

    kind: Literal["forward", "backward"]
    microbatch: int
    round: int = 0


#: `table[tick][stage]` is everything the stage does in that tick, in order; nothing where it idles.
Table = tuple[tuple[tuple[Work, ...], ...], ...]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A table, and the fraction of time its stages idle by formula."""

    name: str
    stages: int
    microbatches: int
    rounds: int
    table: Table

    @property
    def idle_formula(self) -> str:
        """The bubble as one would write it."""
        return "(S - 1) / (R M + S - 1)" if self.rounds > 1 else "(S - 1) / (M + S - 1)"

    @property
    def idle_fraction(self) -> float:
        """Returns the formula's value: the same for any times of forward and backward."""
        return (self.stages - 1) / (self.rounds * self.microbatches + self.stages - 1)

    def seconds(self, forward: float, backward: float) -> tuple[float, float]:
        """Returns (time of the step, time idle summed over stages and divided by them), ticks in step.

        `forward` and `backward` are a microbatch's seconds in one stage's layers of one round.
        """
        cost = {"forward": forward, "backward": backward}
        total = idle = 0.0
        for tick in self.table:
            busy = [sum(cost[work.kind] for work in works) for works in tick]
            # Stages wait for the slowest, which does each kind of work that any stage does in this tick.
            kinds = {work.kind for works in tick for work in works}
            length = max(sum(cost[kind] for kind in kinds), *busy)
            total += length
            idle += sum(length - b for b in busy) / self.stages
        return total, idle

    @property
    def in_flight(self) -> int:
        """Returns the largest number of microbatch inputs that a stage keeps for their backward."""
        held, most = [0] * self.stages, 0
        for tick in self.table:
            for stage, works in enumerate(tick):
                held[stage] += sum(1 if work.kind == "forward" else -1 for work in works)
                # A backward frees its input at the tick's end: in the tick itself both are there.
                most = max(most, held[stage] + any(work.kind == "backward" for work in works))
        return most


def gpipe(stages: int, microbatches: int, rounds: int = 1) -> Schedule:
    """All forwards, then all backwards in reverse (Huang et al. 2018, arXiv:1811.06965).

    With several rounds a microbatch goes through the stages R times (Narayanan et al. 2021, arXiv:2104.04473, 2.2),
    which divides the bubble by R. Then M must be at least S: a stage gets a microbatch back once it has been
    everywhere.
    """
    ticks = rounds * microbatches + stages - 1
    forwards = []
    for tick in range(ticks):
        row = []
        for stage in range(stages):
            chunk, micro = divmod(tick - stage, microbatches)
            row.append((Work("forward", micro, chunk),) if 0 <= chunk < rounds else ())
        forwards.append(tuple(row))
    backwards = [
        tuple(tuple(Work("backward", w.microbatch, w.round) for w in works) for works in row) for row in forwards
    ]
    name = "gpipe" if rounds == 1 else "interleaved"
    return Schedule(name, stages, microbatches, rounds, tuple(forwards) + tuple(reversed(backwards)))


def one_forward_one_backward(stages: int, microbatches: int) -> Schedule:
    """A stage turns to a microbatch's backward as soon as it can (Narayanan et al. 2019, arXiv:1806.03377).

    In step: stage s takes microbatch m forward in tick m + s and backward in tick m + 2 (S - 1) - s, so it keeps at
    most 2 (S - 1 - s) + 1 inputs, whatever M is.
    """
    last = stages - 1
    table = []
    # Cotangents travel back from the last stage, which turns a microbatch round in the tick it gets it, m + S - 1.
    for tick in range(microbatches + 2 * last):
        row = []
        for stage in range(stages):
            forward, backward = tick - stage, tick - 2 * last + stage
            works = []
            if 0 <= forward < microbatches:
                works.append(Work("forward", forward))
            if 0 <= backward < microbatches:
                works.append(Work("backward", backward))
            row.append(tuple(works))
        table.append(tuple(row))
    return Schedule("1f1b", stages, microbatches, 1, tuple(table))
