"""Context parallelism by a loop over parts, which the ring and gathering have in common."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
from kanawa.kernels.attention.over_shards import AttentionOverShards
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.custom_gradient import call
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.verdict import Verdict, first_refusal

from kanawa_parallel.context.contiguous import Contiguous
from kanawa_parallel.context.layout import Layout
from kanawa_parallel.context.travel import Gather, Ring, Travel
from kanawa_parallel.context.travelling_keys import TravellingKeys, kernels_by_role
from kanawa_parallel.context.zigzag import ZigZag, balances


@dataclasses.dataclass(frozen=True)
class LoopedAttention(AttentionOverShards):
    """`balanced` puts causal sequences in zig-zag order for the time of the attention, at the cost of moving halves."""

    travel: ClassVar[type[Travel]]

    balanced: bool = True

    def supports(self, problem: AttentionProblem, shards: int) -> Verdict:
        """Returns support for all but a dense bias, whose columns would have to travel."""
        del shards
        return first_refusal((problem.has_bias, "a dense bias has a column for every key of the whole sequence"))

    def blocks(self, problem: AttentionProblem, shards: int) -> Mapping[str, AttentionProblem]:
        """Returns the layout's blocks."""
        return self.layout(problem, shards).blocks()

    def layout(self, problem: AttentionProblem, shards: int) -> Layout:
        """Returns the order in which parts are held."""
        kind = ZigZag if self.balanced and balances(problem) else Contiguous
        return kind(problem, shards)

    def attend(
        self, problem: AttentionProblem, operands: Operands, kernels: Mapping[str, Kernel], axes: tuple[str, ...]
    ) -> jax.Array:
        """Returns one shard's output."""
        shards = jax.lax.axis_size(axes)
        layout = self.layout(problem, shards)
        loop = TravellingKeys(layout, self.travel(shards, axes), kernels_by_role(kernels))
        out: jax.Array = call(loop, problem, operands)
        return out


@dataclasses.dataclass(frozen=True)
class RingLoop(LoopedAttention):
    """Keys go around a ring."""

    name: ClassVar[str] = "ring"
    travel: ClassVar[type[Travel]] = Ring


@dataclasses.dataclass(frozen=True)
class GatherLoop(LoopedAttention):
    """Keys are gathered at once."""

    name: ClassVar[str] = "all_gather"
    travel: ClassVar[type[Travel]] = Gather
