"""Shard i holds part i of the sequence: any mask, and for a causal window only as many steps as it reaches back."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from kanawa.kernels.attention.problem import AttentionProblem
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

#: Conditions that mean the same for positions counted from any start.
_SHIFTLESS = frozenset({"causal", "window", "segments"})


@dataclasses.dataclass(frozen=True)
class Contiguous(PartsOfOneShard):
    """Later shards have more to do under a causal mask: see ZigZag, which has the same methods."""

    @property
    def steps(self) -> int:
        """All others; under a causal window those that the first query of a part can still see."""
        mask, others = self.problem.mask, self.shards - 1
        if not (self._ordered and mask.window is not None and mask.window[0] is not None):
            return others
        left = mask.window[0]
        # Ceiling: a window that reaches one key into a part needs that part.
        return min(others, -(-left // self.problem.kv_length))

    @property
    def _ordered(self) -> bool:
        """Whether a part's keys are certainly hidden from all parts before it."""
        return self.problem.has_default_positions and self.problem.mask.causal and not self.problem.mask.prefix

    def blocks(self) -> dict[str, AttentionProblem]:
        """Returns the block of a shard's own keys, which knows its mask where that is shiftless, and the others'."""
        problem = block_problem(self.problem)
        # Own queries and keys start at the same place, so such a mask is the same counted from 0, and kernels that know
        # no positions apply. Any other condition (chunks, prefixes, predicates) needs the true positions.
        known = problem.has_default_positions and problem.mask.uses <= _SHIFTLESS
        explicit = dataclasses.replace(problem, has_q_positions=True, has_kv_positions=True)
        blocks = {"own": problem if known else explicit}
        if self.steps:
            blocks["other"] = problem if problem.mask.is_full else explicit
        return blocks

    def arrange(self, x: jax.Array, axis: int, axes: tuple[str, ...]) -> jax.Array:
        """Returns this order's part of an array that holds part i of the sequence along `axis`: the same."""
        del axis, axes
        return x

    restore = arrange

    def forward(self, t: Any, index: jax.Array, operands: Operands, kernels: Kernels) -> Result:
        """Returns the block's result; nothing where the mask hides the whole block."""
        role = "own" if is_own(t) else "other"
        problem = self.blocks()[role]

        def block() -> Result:
            return attend(kernels[role], problem, self._operands(problem, operands, t, index))

        if role == "own" or not self._ordered:
            return block()
        # Step t brings shard index - t, which has wrapped round to a later part where t > index.
        result: Result = jax.lax.cond(t <= index, block, self.nothing)
        return result

    def backward(self, t: Any, index: jax.Array, operands: Operands, saved: Saved, kernels: Kernels) -> Gradients:
        """Returns the block's cotangents."""
        role = "own" if is_own(t) else "other"
        problem = self.blocks()[role]

        def block() -> Gradients:
            return differentiate(kernels[role], problem, self._operands(problem, operands, t, index), saved)

        if role == "own" or not self._ordered:
            return block()
        cotangents: Gradients = jax.lax.cond(t <= index, block, lambda: self.no_gradients(operands))
        return cotangents

    def _operands(self, problem: AttentionProblem, operands: Operands, t: Any, index: jax.Array) -> Operands:
        """Returns the block's operands, with the positions of both parts where the problem has them."""
        if not problem.has_q_positions:
            return operands
        source = (index - t) % self.shards
        own = {
            "q_positions": _part(index, problem.q_length),
            "kv_positions": _part(source, problem.kv_length),
        }
        # Positions that the caller gave win: the keys' have travelled with their keys.
        return {**own, **operands}


def _part(index: jax.Array, length: int) -> jax.Array:
    """Returns the positions of part `index`: int32 [1, L]."""
    return (index * length + jnp.arange(length, dtype=jnp.int32))[None].astype(jnp.int32)
