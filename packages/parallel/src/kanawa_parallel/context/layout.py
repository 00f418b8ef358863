"""What the orders in which shards hold a sequence share: one step of attention over its parts.

Legend: n shards, index i of this one; at step t it meets the keys of shard s = (i - t) mod n. B rows, L queries or
keys of one shard, H heads, D widths. Sums are fp32.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.custom_gradient import check_result
from kanawa.kernels.operation import Kernel, Operands

#: Operands that travel with keys.
KEYS = ("k", "v", "kv_positions", "kv_segment_ids")

Kernels = Mapping[str, Kernel]
#: (out fp32, log-sum-exp) of one block.
Result = tuple[jax.Array, jax.Array]
#: fp32 cotangents of q, k and v of one block.
Gradients = tuple[jax.Array, jax.Array, jax.Array]


@dataclasses.dataclass(frozen=True)
class Saved:
    """What the backward pass needs of a shard's queries: out and its cotangent [B, L, H, D], log-sum-exp [B, H, L]."""

    out: jax.Array
    lse: jax.Array
    dout: jax.Array


@dataclasses.dataclass(frozen=True)
class PartsOfOneShard:
    """Static. `problem` is one shard's: its L queries and L keys under the mask of the whole sequence."""

    problem: AttentionProblem
    shards: int

    def nothing(self) -> Result:
        """Returns the (out, log-sum-exp) of queries that saw no key."""
        p = self.problem
        rows = (p.batch, p.q_length, p.num_heads, p.v_head_dim)
        return jnp.zeros(rows, jnp.float32), jnp.full((p.batch, p.num_heads, p.q_length), -jnp.inf, jnp.float32)

    def no_gradients(self, operands: Operands) -> Gradients:
        """Returns zero cotangents."""
        dq, dk, dv = (jnp.zeros(operands[name].shape, jnp.float32) for name in "qkv")
        return dq, dk, dv


def is_own(t: Any) -> bool:
    """Returns whether step `t` meets a shard's own keys: outside of the loop, so that it is a Python 0."""
    return isinstance(t, int) and t == 0


def block_problem(problem: AttentionProblem) -> AttentionProblem:
    """Returns one block's problem: sinks join after all blocks are merged."""
    return dataclasses.replace(problem, has_sinks=False)


def attend(kernel: Kernel, problem: AttentionProblem, operands: Operands) -> Result:
    """Returns (out fp32, log-sum-exp) of one block by its kernel."""
    out, lse = kernel.forward(problem, operands)
    out = check_result(kernel, problem, operands, out)
    return out.astype(jnp.float32), lse


def differentiate(kernel: Kernel, problem: AttentionProblem, operands: Operands, saved: Saved) -> Gradients:
    """Returns the cotangents of one block by its kernel."""
    # A block's kernel takes the whole row's out and log-sum-exp for its own: exp(score - lse) is then the block's true
    # share of the softmax, and blocks' gradients simply add up.
    gradients = kernel.backward(problem, operands, saved.out, saved.lse, saved.dout)
    dq, dk, dv = (gradients[name].astype(jnp.float32) for name in "qkv")
    return dq, dk, dv
