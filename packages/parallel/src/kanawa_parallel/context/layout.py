"""Layout: which part of a sequence a shard holds, and what one step of attention over the parts computes.

Legend: n shards, index i of this one; at step t it meets the keys of shard s = (i - t) mod n. B rows, L queries or
keys of one shard, H heads, D widths. Sums are fp32.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel, Operands

#: Operands that belong to queries, and those that travel with keys.
QUERIES = ("q", "q_positions", "q_segment_ids")
KEYS = ("k", "v", "kv_positions", "kv_segment_ids")

Kernels = Mapping[str, Kernel]
#: fp32 cotangents of q, k and v of one block.
Gradients = tuple[jax.Array, jax.Array, jax.Array]


@dataclasses.dataclass(frozen=True)
class Saved:
    """What the backward pass needs of a shard's queries: out and its cotangent [B, L, H, D], log-sum-exp [B, H, L]."""

    out: jax.Array
    lse: jax.Array
    dout: jax.Array


@dataclasses.dataclass(frozen=True)
class Layout(abc.ABC):
    """Static. `problem` is one shard's: its L queries and L keys under the mask of the whole sequence."""

    problem: AttentionProblem
    shards: int

    @property
    @abc.abstractmethod
    def steps(self) -> int:
        """How many other shards' keys a shard has to meet, the nearest before it first."""

    @abc.abstractmethod
    def blocks(self) -> dict[str, AttentionProblem]:
        """Returns the problems of blocks, by role."""

    @abc.abstractmethod
    def arrange(self, x: jax.Array, axis: int, axes: tuple[str, ...]) -> jax.Array:
        """Returns this layout's part of an array that holds part i of the sequence along `axis`."""

    @abc.abstractmethod
    def restore(self, x: jax.Array, axis: int, axes: tuple[str, ...]) -> jax.Array:
        """Undoes `arrange`."""

    @abc.abstractmethod
    def forward(self, t: Any, index: jax.Array, operands: Operands, kernels: Kernels) -> tuple[jax.Array, jax.Array]:
        """Returns (out fp32, log-sum-exp) of the queries over the keys met at step `t`, a Python 0 for the own ones."""

    @abc.abstractmethod
    def backward(self, t: Any, index: jax.Array, operands: Operands, saved: Saved, kernels: Kernels) -> Gradients:
        """Returns the cotangents of queries and keys from step `t`; `saved.lse` is over all keys."""

    def nothing(self) -> tuple[jax.Array, jax.Array]:
        """Returns the (out, log-sum-exp) of queries that saw no key."""
        p = self.problem
        rows = (p.batch, p.q_length, p.num_heads, p.v_head_dim)
        return jnp.zeros(rows, jnp.float32), jnp.full((p.batch, p.num_heads, p.q_length), -jnp.inf, jnp.float32)

    def no_gradients(self, operands: Operands) -> Gradients:
        """Returns zero cotangents."""
        dq, dk, dv = (jnp.zeros(operands[name].shape, jnp.float32) for name in "qkv")
        return dq, dk, dv


def block_problem(problem: AttentionProblem, **changes: Any) -> AttentionProblem:
    """Returns one block's problem: sinks join after all blocks are merged."""
    return dataclasses.replace(problem, has_sinks=False, **changes)


def attend(kernel: Kernel, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
    """Returns (out fp32, log-sum-exp) of one block by its kernel."""
    out, lse = kernel.forward(problem, operands)
    return out.astype(jnp.float32), lse


def differentiate(kernel: Kernel, problem: AttentionProblem, operands: Operands, saved: Saved) -> Gradients:
    """Returns the cotangents of one block by its kernel."""
    # A block's kernel takes the whole row's out and log-sum-exp for its own: exp(score - lse) is then the block's true
    # share of the softmax, and blocks' gradients simply add up.
    gradients = kernel.backward(problem, operands, saved.out, saved.lse, saved.dout)
    dq, dk, dv = (gradients[name].astype(jnp.float32) for name in "qkv")
    return dq, dk, dv
