"""The ring that Megatron runs: rows lie in the balanced order before the first layer, so attention moves no queries.

Only for planning published steps: nothing here brings rows into that order.
"""

import dataclasses

import jax
from kanawa.contracts import Distributed
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa_parallel.context.contiguous import Contiguous
from kanawa_parallel.context.looped import RingLoop
from kanawa_parallel.context.zigzag import ZigZag
from kanawa_parallel.rules import SplitPositions


@dataclasses.dataclass(frozen=True)
class _AsItLies(ZigZag):
    """Halves i and 2n - 1 - i, where they are already."""

    def arrange(self, x: jax.Array, axis: int, axes: tuple[str, ...]) -> jax.Array:
        """Returns the array."""
        del axis, axes
        return x

    restore = arrange


@dataclasses.dataclass(frozen=True)
class _ArrangedLoop(RingLoop):
    """A ring of rows in the balanced order."""

    def layout(self, problem: AttentionProblem, shards: int) -> Contiguous | ZigZag:
        """Returns the order in which parts are held."""
        return _AsItLies(problem, shards)


class ArrangedRing(SplitPositions):
    """Splits sequences over `context`; only keys and values travel."""

    def distributed(self) -> tuple[Distributed, ...]:
        """Returns the ring."""
        return (_ArrangedLoop(),)
