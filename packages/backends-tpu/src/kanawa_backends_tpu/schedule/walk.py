"""Counts how often each bundle of a schedule runs: branches decided by the grid are followed, others weighed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kanawa_backends_tpu.schedule.bundles import Branch, Program
from kanawa_backends_tpu.schedule.scalars import State, deciding, places

#: Rounds of loops that are walked before the rest is taken to be like them.
MOST_ROUNDS = 512


@dataclass(frozen=True)
class Walk:
    """How often each bundle runs; `by_data` holds the branches that the data decide, loops among them."""

    runs: tuple[float, ...]
    by_data: frozenset[int]
    cut: bool


@dataclass
class _Walker:
    program: Program
    share: float
    steps: float
    tables: Sequence[Sequence[int] | None] = ()
    outputs: float | None = None
    products: frozenset[int] = frozenset()
    weight: float = 1.0
    by_data: set[int] = field(default_factory=set)
    guarded: list[tuple[int, float]] = field(default_factory=list)  # where it ends, the weight before it
    rounds: Counter[int] = field(default_factory=Counter)
    cut: bool = False

    def run(self) -> tuple[float, ...]:
        """Returns how often each bundle runs."""
        scalars, state = deciding(self.program), State(tables=places(self.program, self.tables))
        runs = [0.0] * len(self.program.bundles)
        at, back = 0, False
        pending: Branch | None = None
        while at < len(runs):
            while self.guarded and at >= self.guarded[-1][0]:
                self.weight = self.guarded.pop()[1]
            runs[at] += self.weight
            for scalar in scalars[at]:
                state.step(scalar, back)
            back = False
            branch = self.program.branches.get(at)
            if branch is not None and self._taken(branch, state):
                pending = branch
            at += 1
            if pending is not None and at >= pending.after:
                back, at, pending = pending.to < at, pending.to, None
        return tuple(runs)

    def _taken(self, branch: Branch, state: State) -> bool:
        value = state.of(branch.predicate) if branch.predicate else 1
        taken = None if value is None else bool(value) != branch.negated
        if taken is None:
            self.by_data.add(branch.at)
        if branch.to > branch.at:
            if taken is None:
                self.guarded.append((branch.to, self.weight))
                self.weight *= self._share(branch)
            return bool(taken)
        self.rounds[branch.at] += 1
        if taken is None:
            self.cut |= self.rounds[branch.at] >= MOST_ROUNDS
            return self.rounds[branch.at] < min(self.steps, MOST_ROUNDS)
        # A loop inside another is gone through to its end each time: were it cut, later rounds of the outer one would
        # be shorter than the first, and the whole, scaled by the outer one's rounds, too short.
        if taken and self.rounds[branch.at] >= MOST_ROUNDS and not self.program.is_inner(branch):
            self.cut = True
            return False
        return taken

    def _share(self, branch: Branch) -> float:
        """Returns how often what a branch guards runs, where the data decide."""
        branches = self.program.branches.values()
        # What holds loops or branches of its own, such as the check that a grid isn't empty, skips no tile.
        if any(branch.at < min(other.at, other.to) and max(other.at, other.to) < branch.to for other in branches):
            return 1.0
        guarded = range(branch.after, branch.to)
        if self.outputs is not None and not self.products.intersection(guarded):
            # No product: sums that are cleared or written, once for each block of the output.
            return min(1.0, self.outputs / self.steps)
        # Two bodies one behind the other are two ways to do one thing: with and without a mask.
        twins = any(other is not branch and (other.at == branch.to or other.to == branch.at) for other in branches)
        return self.share / 2 if twins else self.share


def walk(
    program: Program,
    share: float = 1.0,
    steps: float = 1.0,
    tables: Sequence[Sequence[int] | None] = (),
    outputs: float | None = None,
    products: frozenset[int] = frozenset(),
) -> Walk:
    """Returns the counts of one call on one core, with what is known of the call's scalar operands.

    What only the data decide runs in `share` of the cases, and a loop whose end they decide `steps` times. Where it is
    known which bundles hold `products` and how many blocks of output there are, what the data decide without a product
    runs once for each. A loop that takes too long is left after MOST_ROUNDS; `cut` is then true.
    """
    walker = _Walker(program, share, steps, tables, outputs, products)
    runs = walker.run()
    return Walk(runs, frozenset(walker.by_data), walker.cut)
