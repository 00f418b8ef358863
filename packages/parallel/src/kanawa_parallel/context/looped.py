"""Context parallelism by a loop over parts: exact attention of one shard, whose keys come by part after part.

Forward keeps this shard's q, k, v, out and log-sum-exp and nothing of the blocks; backward meets the keys again.
So activation memory on a device is 1/n of the sequence's, where differentiating the loop would keep every block.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels.attention.gradient import row_delta, sinks_gradient
from kanawa.kernels.attention.merge import merge, merge_sinks
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.custom_gradient import call
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.verdict import SUPPORTED, Verdict, first_refusal

from kanawa_parallel.context.contiguous import Contiguous
from kanawa_parallel.context.layout import KEYS, Result, Saved
from kanawa_parallel.context.over_shards import AttentionOverShards
from kanawa_parallel.context.travel import Gather, Ring
from kanawa_parallel.context.zigzag import ZigZag, balances


@dataclasses.dataclass(frozen=True)
class TravellingKeys(Kernel):
    """What a shard runs inside `AttentionOverShards`; its inner kernels, one for each of the layout's blocks, are
    those of the catalog.
    """

    name: ClassVar[str] = "attention.any.travelling_keys"
    operation: ClassVar[str] = "attention"

    layout: Contiguous | ZigZag
    travel: Ring | Gather
    inner: tuple[tuple[str, Kernel], ...]

    def supports(self, problem: AttentionProblem, device: Any) -> Verdict:
        """Returns support: the layout was made for the problem."""
        del problem, device
        return SUPPORTED

    def forward(self, problem: AttentionProblem, operands: Operands) -> Result:
        """Returns (out [B, L, H, Dv], log-sum-exp fp32 [B, H, L] in the layout's order, sinks included)."""
        layout, travel, kernels = self.layout, self.travel, dict(self.inner)
        index = jax.lax.axis_index(travel.axes)
        operands = self._arranged(operands)
        keys, rest = _split(operands)

        def meet(t: Any, theirs: Operands, seen: Result) -> Result:
            return merge(*seen, *layout.forward(t, index, {**rest, **theirs}, kernels))

        def step(t: jax.Array, carry: Any) -> Any:
            state, seen = carry
            following = travel.advance(state)
            return following, meet(t, travel.read(state, t, index), seen)

        last = layout.steps
        # Before the own block is computed, on which it doesn't depend: the first hop hides behind it.
        state = travel.depart(keys) if last else None
        seen = layout.forward(0, index, operands, kernels)
        if last:
            state, seen = jax.lax.fori_loop(1, last, step, (state, seen))
            # The last step stands outside of the loop, which would send keys once more than needed. It is an array,
            # as in the loop, because a Python 0 means the own block.
            seen = meet(jnp.int32(last), travel.read(state, last, index), seen)
        out, lse = merge_sinks(*seen, operands["sinks"]) if problem.has_sinks else seen
        return layout.restore(out.astype(operands["v"].dtype), 1, travel.axes), lse

    def backward(
        self,
        problem: AttentionProblem,
        operands: Operands,
        out: jax.Array,
        residuals: jax.Array,
        cotangents: jax.Array,
    ) -> dict[str, jax.Array]:
        """Returns fp32 cotangents of q, k, v and sinks."""
        layout, travel, kernels = self.layout, self.travel, dict(self.inner)
        index = jax.lax.axis_index(travel.axes)
        operands = self._arranged(operands)
        keys, rest = _split(operands)
        # The log-sum-exp was saved in the layout's order; out was restored for the caller, and comes back in the
        # sequence's.
        out, dout = (layout.arrange(x, 1, travel.axes) for x in (out, cotangents))
        saved = Saved(out, residuals, dout)

        def meet(t: Any, theirs: Operands, sums: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            dq, dk, dv = layout.backward(t, index, {**rest, **theirs}, saved, kernels)
            return sums[0] + dq, travel.add(sums[1], {"k": dk, "v": dv}, t, index)

        def step(t: jax.Array, carry: Any) -> Any:
            state, sums = carry
            following = travel.advance(state)
            return following, meet(t, travel.read(state, t, index), sums)

        last = layout.steps
        state = travel.depart(keys) if last else None
        dq, dk, dv = layout.backward(0, index, operands, saved, kernels)
        collected: Any = {"k": dk, "v": dv}
        if last:
            sums = (dq, travel.collect(collected, index))
            state, sums = jax.lax.fori_loop(1, last, step, (state, sums))
            dq, collected = meet(jnp.int32(last), travel.read(state, last, index), sums)
            collected = travel.bring_home(collected, last)
        grads = {"q": dq, **collected}
        grads = {name: layout.restore(x, 1, travel.axes) for name, x in grads.items()}
        if problem.has_sinks:
            grads["sinks"] = sinks_gradient(operands["sinks"], residuals, row_delta(out, dout))
        return grads

    def _arranged(self, operands: Operands) -> dict[str, jax.Array]:
        """Returns the operands in the layout's order; sinks and prefix lengths have no sequence axis."""
        whole = ("sinks", "prefix_lengths")
        axes = self.travel.axes
        return {n: x if n in whole else self.layout.arrange(x, 1, axes) for n, x in operands.items()}


def _split(operands: Operands) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Returns what travels, and what stays."""
    keys = {name: x for name, x in operands.items() if name in KEYS}
    return keys, {name: x for name, x in operands.items() if name not in KEYS}


@dataclasses.dataclass(frozen=True)
class LoopedAttention(AttentionOverShards):
    """`balanced` puts causal sequences in zig-zag order for the time of the attention, at the cost of moving halves."""

    travel: ClassVar[type[Ring | Gather]]

    balanced: bool = True

    def supports(self, problem: AttentionProblem, shards: int) -> Verdict:
        """Returns support for all but a dense bias, whose columns would have to travel."""
        del shards
        return first_refusal((problem.has_bias, "a dense bias has a column for every key of the whole sequence"))

    def blocks(self, problem: AttentionProblem, shards: int) -> Mapping[str, AttentionProblem]:
        """Returns the layout's blocks."""
        return self.layout(problem, shards).blocks()

    def layout(self, problem: AttentionProblem, shards: int) -> Contiguous | ZigZag:
        """Returns the order in which parts are held."""
        kind = ZigZag if self.balanced and balances(problem) else Contiguous
        return kind(problem, shards)

    def attend(
        self, problem: AttentionProblem, operands: Operands, kernels: Mapping[str, Kernel], axes: tuple[str, ...]
    ) -> jax.Array:
        """Returns one shard's output."""
        shards = jax.lax.axis_size(axes)
        # Sorted, and a tuple: it is part of a kernel that custom_vjp hashes, and equal ones must be found equal.
        by_role = tuple(sorted(kernels.items(), key=lambda item: item[0]))
        loop = TravellingKeys(self.layout(problem, shards), self.travel(shards, axes), by_role)
        out: jax.Array = call(loop, problem, operands)
        return out


@dataclasses.dataclass(frozen=True)
class RingLoop(LoopedAttention):
    """Keys go around a ring."""

    name: ClassVar[str] = "ring"
    travel: ClassVar[type[Ring | Gather]] = Ring


@dataclasses.dataclass(frozen=True)
class GatherLoop(LoopedAttention):
    """Keys are gathered at once."""

    name: ClassVar[str] = "all_gather"
    travel: ClassVar[type[Ring | Gather]] = Gather
