"""The operands of attention: default positions, and the mask as an array."""

import jax
import jax.numpy as jnp

from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Operands


def q_positions(problem: AttentionProblem, operands: Operands) -> jax.Array:
    """Returns int [B or 1, T]: the call's positions, else each row's last ones, else 0, 1, 2, …"""
    if problem.has_q_positions:
        q: jax.Array = operands["q_positions"]
        return q
    index = jnp.arange(problem.q_length, dtype=jnp.int32)[None]
    if problem.has_kv_lengths:
        index = index + (operands["kv_lengths"][:, None] - problem.q_length)
    return index


def kv_positions(problem: AttentionProblem, operands: Operands) -> jax.Array:
    """Returns the keys' positions: int32 [B or 1, S]."""
    if problem.has_kv_positions:
        kv: jax.Array = operands["kv_positions"]
        return kv
    return jnp.arange(problem.kv_length, dtype=jnp.int32)[None]


def mask_array(problem: AttentionProblem, operands: Operands) -> jax.Array | None:
    """Returns who may attend to whom, bool [B or 1, T, S], or None where everyone may.

    A kernel that lacks some of a mask uses this as its dense rest.
    """
    mask = problem.mask.allowed(
        q_positions(problem, operands),
        kv_positions(problem, operands),
        operands.get("q_segment_ids"),
        operands.get("kv_segment_ids"),
        operands.get("prefix_lengths"),
        operands.get("lookahead"),
    )
    # A cache has room behind its last key, with whatever was there before: it must not be seen.
    if problem.has_kv_lengths and not _causal_hides_missing_keys(problem):
        index = jnp.arange(problem.kv_length, dtype=jnp.int32)[None]
        exists = (index < operands["kv_lengths"][:, None])[:, None, :]
        mask = exists if mask is None else mask & exists
    return mask


def _causal_hides_missing_keys(problem: AttentionProblem) -> bool:
    """True where queries are their row's last, so that causality hides what comes after."""
    implied = not (problem.has_q_positions or problem.has_kv_positions or problem.has_lookahead)
    return implied and problem.mask.causal and not problem.mask.prefix
