"""Load-balanced causal order: of 2n half-parts, shard i holds i and 2n - 1 - i, an early and a late one.

Every step then has the same work on every shard (Zhu's zig-zag ring; Llama 3, section 3.3.2), and each block is
either plainly causal or has no mask at all, so that kernels which know only those two apply.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.masks import CAUSAL, MaskSpec
from kanawa.kernels.operation import Operands

from kanawa_parallel.context.layout import (
    Gradients,
    Kernels,
    PartsOfOneShard,
    Result,
    Saved,
    attend,
    block_problem,
    differentiate,
    is_own,
)

_Pairs = list[tuple[int, int]]


def balances(problem: AttentionProblem) -> bool:
    """Returns whether the order helps and applies: causal, packed or not, positions 0, 1, 2, …, parts that halve."""
    # With contiguous parts the last shard has n times the first's work, and all wait for it; halves i and 2n - 1 - i
    # add up to the same for everyone.
    causal = problem.mask.without_segments == CAUSAL
    return causal and problem.has_default_positions and problem.q_length % 2 == 0


@dataclasses.dataclass(frozen=True)
class ZigZag(PartsOfOneShard):
    """Own keys: causal over both halves. Keys of an earlier shard: all queries see its early half. Of a later one:
    the late queries see both halves.
    """

    @property
    def steps(self) -> int:
        """All other shards."""
        return self.shards - 1

    def blocks(self) -> dict[str, AttentionProblem]:
        """Returns the blocks "own", "early_keys" and "late_queries"."""
        problem = block_problem(self.problem)
        half = problem.q_length // 2
        packed = problem.has_segments
        # Positions change nothing here, but kernels then know that a query may have no key of its segment in the block.
        other = dataclasses.replace(
            problem, mask=MaskSpec(segments=packed), has_q_positions=packed, has_kv_positions=packed
        )
        return {
            "own": problem,
            "early_keys": dataclasses.replace(other, kv_length=half),
            "late_queries": dataclasses.replace(other, q_length=half),
        }

    def arrange(self, x: jax.Array, axis: int, axes: tuple[str, ...]) -> jax.Array:
        """Returns halves i and 2n - 1 - i of an array that holds halves 2i and 2i + 1."""
        first, second = jnp.split(x, 2, axis)
        even = jax.lax.ppermute(first, axes, _moves(self.shards, 0))
        odd = jax.lax.ppermute(second, axes, _moves(self.shards, 1))
        return _in_order(even, odd, axis, axes)

    def restore(self, x: jax.Array, axis: int, axes: tuple[str, ...]) -> jax.Array:
        """Returns halves 2i and 2i + 1 of an array that holds halves i and 2n - 1 - i."""
        early, late = jnp.split(x, 2, axis)
        is_even = jax.lax.axis_index(axes) % 2 == 0
        even, odd = jnp.where(is_even, early, late), jnp.where(is_even, late, early)
        back = [[(b, a) for a, b in _moves(self.shards, parity)] for parity in (0, 1)]
        parts = [jax.lax.ppermute(half, axes, pairs) for half, pairs in zip((even, odd), back, strict=True)]
        return jnp.concatenate(parts, axis)

    def forward(self, t: Any, index: jax.Array, operands: Operands, kernels: Kernels) -> Result:
        """Returns the block's result."""
        blocks = self.blocks()
        if is_own(t):
            return attend(kernels["own"], blocks["own"], operands)

        def early_keys() -> Result:
            return attend(kernels["early_keys"], blocks["early_keys"], _early_keys(operands, blocks["early_keys"]))

        def late_queries() -> Result:
            problem = blocks["late_queries"]
            out, lse = attend(kernels["late_queries"], problem, _late_queries(operands, problem))
            # The early half saw nothing in this block: out 0 and log-sum-exp -inf, which merging passes over.
            no_out, no_lse = (jnp.split(x, 2, axis)[0] for x, axis in zip(self.nothing(), (1, 2), strict=True))
            return jnp.concatenate([no_out, out], 1), jnp.concatenate([no_lse, lse], 2)

        # Both branches are half a block's work, so that shards on either side take the same time: that is the point of
        # the order.
        result: Result = jax.lax.cond(t <= index, early_keys, late_queries)
        return result

    def backward(self, t: Any, index: jax.Array, operands: Operands, saved: Saved, kernels: Kernels) -> Gradients:
        """Returns the block's cotangents."""
        blocks = self.blocks()
        if is_own(t):
            return differentiate(kernels["own"], blocks["own"], operands, saved)

        def early_keys() -> Gradients:
            problem = blocks["early_keys"]
            dq, dk, dv = differentiate(kernels["early_keys"], problem, _early_keys(operands, problem), saved)
            return dq, _padded(dk, early=True), _padded(dv, early=True)

        def late_queries() -> Gradients:
            problem = blocks["late_queries"]
            late = Saved(_late(saved.out), _late(saved.lse, 2), _late(saved.dout))
            dq, dk, dv = differentiate(kernels["late_queries"], problem, _late_queries(operands, problem), late)
            return _padded(dq, early=False), dk, dv

        cotangents: Gradients = jax.lax.cond(t <= index, early_keys, late_queries)
        return cotangents


def _moves(shards: int, parity: int) -> _Pairs:
    """Returns (from, to) of each shard's first (parity 0) or second half."""
    # Half h of 2n goes to shard h while they last, and back from the end after that: 0 1 2 3 3 2 1 0 for four shards.
    halves = ((i, 2 * i + parity) for i in range(shards))
    return [(i, half if half < shards else 2 * shards - 1 - half) for i, half in halves]


def _in_order(even: jax.Array, odd: jax.Array, axis: int, axes: tuple[str, ...]) -> jax.Array:
    """Returns the halves with the early one, whose parity is the shard's own, first."""
    # Halves i and 2n - 1 - i differ in parity, so a shard gets one of each permutation; the early one, i, has its own.
    is_even = jax.lax.axis_index(axes) % 2 == 0
    return jnp.concatenate([jnp.where(is_even, even, odd), jnp.where(is_even, odd, even)], axis)


def _early_keys(operands: Operands, problem: AttentionProblem) -> dict[str, jax.Array]:
    keys = ("k", "v", "kv_segment_ids")
    cut = {name: jnp.split(x, 2, 1)[0] if name in keys else x for name, x in operands.items()}
    return _placed(cut, problem)


def _late_queries(operands: Operands, problem: AttentionProblem) -> dict[str, jax.Array]:
    cut = {name: _late(x) if name in ("q", "q_segment_ids") else x for name, x in operands.items()}
    return _placed(cut, problem)


def _placed(operands: dict[str, jax.Array], problem: AttentionProblem) -> dict[str, jax.Array]:
    if problem.has_q_positions:
        operands["q_positions"] = jnp.arange(problem.q_length, dtype=jnp.int32)[None]
        operands["kv_positions"] = jnp.arange(problem.kv_length, dtype=jnp.int32)[None]
    return operands


def _late(x: jax.Array, axis: int = 1) -> jax.Array:
    return jnp.split(x, 2, axis)[1]


def _padded(x: jax.Array, *, early: bool) -> jax.Array:
    parts = [x, jnp.zeros_like(x)]
    return jnp.concatenate(parts if early else parts[::-1], 1)
