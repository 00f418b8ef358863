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


def one_forward_one_backward(stages: int, microbatches: int, rounds: int = 1, *, paired: bool = False) -> Schedule:
    """A stage turns to a microbatch's backward as soon as it can (Narayanan et al. 2019, arXiv:1806.03377).

    Built by simulation: each tick every stage does the first forward and the first backward that are ready, in the
    order of the schedule. With rounds microbatches go around in groups (Narayanan et al. 2021, arXiv:2104.04473, 2.2).
    `paired`: a backward isn't ready in the tick of the forward that it follows.
    """
    path = [(turn, stage) for turn in range(rounds) for stage in range(stages)]
    groups = _groups(stages, microbatches) if rounds > 1 else [list(range(microbatches))]
    order = [(micro, turn) for group in groups for turn in range(rounds) for micro in group]
    back = [(micro, turn) for group in groups for turn in reversed(range(rounds)) for micro in group]
    forwards = {stage: list(order) for stage in range(stages)}
    backwards = {stage: list(back) for stage in range(stages)}
    done: dict[tuple[str, int, int, int], int] = {}
    table = []
    begun = False
    while any(forwards.values()) or any(backwards.values()):
        tick, row = len(table), []
        for stage in range(stages):
            works = []
            if forwards[stage]:
                micro, turn = forwards[stage][0]
                at = path.index((turn, stage))
                if at == 0 or done.get(("forward", micro, *path[at - 1]), tick) < tick:
                    works.append(Work("forward", micro, turn))
                    done["forward", micro, turn, stage] = tick
                    forwards[stage].pop(0)
            row.append(works)
        for stage in reversed(range(stages)):
            if not backwards[stage]:
                continue
            micro, turn = backwards[stage][0]
            at = path.index((turn, stage))
            after = ("backward", micro, *path[at + 1]) if at + 1 < len(path) else None
            if after is None:
                # All groups turn as late as the longest: backwards never wait once they have begun.
                turned = done.get(("forward", micro, turn, stage), tick + 1) <= tick - paired
                ready = turned and (begun or tick >= (rounds - 1) * max(map(len, groups)) + stages - 1 + paired)
            else:
                ready = done.get(after, tick) < tick
            if ready:
                begun = True
                row[stage].append(Work("backward", micro, turn))
                done["backward", micro, turn, stage] = tick
                backwards[stage].pop(0)
        table.append(tuple(tuple(works) for works in row))
    return Schedule("1f1b", stages, microbatches, rounds, tuple(table))


def _groups(stages: int, microbatches: int) -> list[list[int]]:
    """Returns microbatches in groups of at least as many as there are stages, as even as they can be."""
    count = max(1, microbatches // stages)
    sizes = [microbatches // count + (group < microbatches % count) for group in range(count)]
    starts = [sum(sizes[:group]) for group in range(count)]
    return [list(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]


def zero_bubble(stages: int, microbatches: int, rounds: int = 1, *, paired: bool = False) -> Schedule:
    """1F1B whose gradients of weights wait for the first stage (after Qi et al. 2023, arXiv:2401.10241).

    In step: all stages take those of a pass in the tick in which its backward reaches the first one.
    """
    table = []
    for row in one_forward_one_backward(stages, microbatches, rounds, paired=paired).table:
        first = [Work("weights", work.microbatch, work.round) for work in row[0] if work.kind == "backward"]
        table.append(tuple((*stage, *first) for stage in row))
    return Schedule("dualpipe" if paired else "zero-bubble", stages, microbatches, rounds, tuple(table))
