"""Pipeline schedules as tables: which microbatch each stage works on at each tick, and in what direction.

Legend: S stages, M microbatches, R rounds (a stage holds R separate runs of layers).
"""

import dataclasses
from typing import Literal, NamedTuple


class Work(NamedTuple):
    """One stage's work in one tick: a microbatch's pass through the stage's layers of one round.

    A "backward" with "weights" in the table takes gradients of inputs alone.
    """

    kind: Literal["forward", "backward", "weights"]
    microbatch: int
    round: int = 0


#: `table[tick][stage]` is everything the stage does in that tick, in order; nothing where it idles.
Table = tuple[tuple[tuple[Work, ...], ...], ...]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A table, and how long its stages idle."""

    name: str
    stages: int
    microbatches: int
    rounds: int
    table: Table

    def layers(self, num_layers: int) -> dict[tuple[int, int], int]:
        """Returns the layers of each (round, stage), spread as evenly as they can be, the first ones longer."""
        runs = self.stages * self.rounds
        counts = [num_layers // runs + (run < num_layers % runs) for run in range(runs)]
        return {divmod(run, self.stages): count for run, count in enumerate(counts)}

    def seconds(
        self, forward: float, backward: float, weights: float = 0.0, num_layers: int | None = None
    ) -> tuple[float, float]:
        """Returns (time of the step, time idle summed over stages and divided by them), ticks in step.

        `forward`, `backward` and `weights` are a microbatch's seconds in one layer; without `num_layers` every stage
        has one in each round.
        """
        cost = {"forward": forward, "backward": backward, "weights": weights}
        layers = self.layers(num_layers or self.stages * self.rounds)
        total = idle = 0.0
        for tick in self.table:
            busy = [
                sum(layers[work.round, stage] * cost[work.kind] for work in works) for stage, works in enumerate(tick)
            ]
            # All run one program: as long as the longest run of layers, for each kind of work that any stage does.
            kinds = {work.kind for works in tick for work in works}
            length = max(layers.values()) * sum(cost[kind] for kind in kinds)
            total += length
            idle += sum(length - b for b in busy) / self.stages
        return total, idle

    @property
    def in_flight(self) -> int:
        """Returns the largest number of microbatch inputs that a stage keeps for their backward."""
        held, most = [0] * self.stages, 0
        for tick in self.table:
            for stage, works in enumerate(tick):
                held[stage] += sum({"forward": 1, "backward": -1}.get(work.kind, 0) for work in works)
                # A backward frees its input at the tick's end: in the tick itself both are there.
                most = max(most, held[stage] + any(work.kind == "backward" for work in works))
        return most


def gpipe(stages: int, microbatches: int, rounds: int = 1) -> Schedule:
    """All forwards, then all backwards in reverse (Huang et al. 2018, arXiv:1811.06965).

    With several rounds a microbatch goes through the stages R times (Narayanan et al. 2021, arXiv:2104.04473, 2.2),
    which divides the bubble by R. With fewer microbatches than stages, the first stage waits until one comes back.
    """
    period = max(stages, microbatches) if rounds > 1 else microbatches
    ticks = (rounds - 1) * period + microbatches + stages - 1
    forwards = []
    for tick in range(ticks):
        row = []
        for stage in range(stages):
            chunk, micro = divmod(tick - stage, period)
            row.append((Work("forward", micro, chunk),) if 0 <= chunk < rounds and micro < microbatches else ())
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


def zero_bubble(stages: int, microbatches: int) -> Schedule:
    """1F1B whose gradients of weights wait for the first stage (after Qi et al. 2023, arXiv:2401.10241).

    In step: all stages take those of microbatch m in tick m + 2 (S - 1), in which its backward reaches the first one.
    """
    table = []
    for tick, row in enumerate(one_forward_one_backward(stages, microbatches).table):
        micro = tick - 2 * (stages - 1)
        works = (Work("weights", micro),) if micro >= 0 else ()
        table.append(tuple((*stage, *works) for stage in row))
    return Schedule("zero-bubble", stages, microbatches, 1, tuple(table))
