"""Sequence parts become head parts and back by all-to-all (DeepSpeed Ulysses; Jacobs et al. 2023, arXiv:2309.14509)."""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.custom_gradient import call
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.verdict import Verdict, first_refusal

from kanawa_parallel.context.over_shards import AttentionOverShards

_WHOLE = "whole"


@dataclasses.dataclass(frozen=True)
class UlyssesExchange(AttentionOverShards):
    """Every kernel applies as it is, on whole sequences of fewer heads; at most as many shards as query heads."""

    name: ClassVar[str] = "ulysses"

    def supports(self, problem: AttentionProblem, shards: int) -> Verdict:
        """Returns support where query heads divide."""
        heads = problem.num_heads
        return first_refusal(
            (problem.has_bias, "a dense bias would have to be exchanged too"),
            (heads % shards != 0, f"{heads} query heads on a shard don't divide over {shards} shards"),
        )

    def blocks(self, problem: AttentionProblem, shards: int) -> Mapping[str, AttentionProblem]:
        """Returns the problem of whole sequences and a part of the heads."""
        return {_WHOLE: _exchanged(problem, shards)}

    def attend(
        self, problem: AttentionProblem, operands: Operands, kernels: Mapping[str, Kernel], axes: tuple[str, ...]
    ) -> jax.Array:
        """Returns one shard's output."""
        shards = jax.lax.axis_size(axes)
        whole = _exchanged(problem, shards)
        exchanged: dict[str, jax.Array] = {}
        for name, x in operands.items():
            if name in ("q", "k", "v"):
                # Fewer key heads than shards: each is repeated just so often that parts of heads come out even.
                # Repeated side by side, a shard's query heads still lie beside their own key heads.
                copies = 1 if name == "q" else whole.num_kv_heads * shards // problem.num_kv_heads
                repeated = jnp.repeat(x, copies, axis=2) if copies > 1 else x
                exchanged[name] = _exchange(repeated, axes, split_axis=2, concat_axis=1)
            elif name == "sinks":
                start = jax.lax.axis_index(axes) * whole.num_heads
                exchanged[name] = jax.lax.dynamic_slice_in_dim(x, start, whole.num_heads)
            elif name == "prefix_lengths":
                exchanged[name] = x
            else:
                # Positions and segment ids have no heads to exchange, and are small.
                exchanged[name] = jax.lax.all_gather(x, axes, axis=1, tiled=True)
        out = call(kernels[_WHOLE], whole, exchanged)
        return _exchange(out, axes, split_axis=1, concat_axis=2)


def _exchanged(problem: AttentionProblem, shards: int) -> AttentionProblem:
    """Returns the problem after the exchange; key heads are repeated where there are too few."""
    return dataclasses.replace(
        problem,
        q_length=problem.q_length * shards,
        kv_length=problem.kv_length * shards,
        num_heads=problem.num_heads // shards,
        num_kv_heads=math.lcm(problem.num_kv_heads, shards) // shards,
    )


def _exchange(x: jax.Array, axes: tuple[str, ...], *, split_axis: int, concat_axis: int) -> jax.Array:
    exchanged: jax.Array = jax.lax.all_to_all(x, axes, split_axis, concat_axis, tiled=True)
    return exchanged
