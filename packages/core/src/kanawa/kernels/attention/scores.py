"""Attention scores in plain JAX, shared by the reference and by blockwise attention.

Legend: B batch, T queries, S keys, H query heads, K key heads, G = H / K, D head width. Scores are
[B, H, T, S] where G is 1 and [B, K, T, G, S] otherwise: keys are never repeated, and XLA's CPU
backend runs five-dimensional products at half speed where four dimensions would do.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kanawa.kernels.attention.operands import kv_positions, q_positions
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Operands, wide

#: Finite, so that a fully masked row has no NaN in the softmax or in its gradient.
MASKED = float(np.finfo(np.float32).min)


def fold_heads(x: jax.Array, num_kv_heads: int) -> jax.Array:
    """Returns [B, T, H, D] as [B, T, H, D] if H is K, else as [B, K, T * G, D]."""
    batch, length, heads, width = x.shape
    if heads == num_kv_heads:
        return x
    group = heads // num_kv_heads
    # Queries that share a key head become more rows of one product: [B, T, K, G, D] -> [B, K, T, G, D].
    split = x.reshape(batch, length, num_kv_heads, group, width)
    return split.transpose(0, 2, 1, 3, 4).reshape(batch, num_kv_heads, length * group, width)


def unfold_heads(x: jax.Array, problem: AttentionProblem) -> jax.Array:
    """Undoes `fold_heads`: [B, K, T * G, D] to [B, T, H, D]."""
    if problem.group_size == 1:
        return x
    batch, heads, rows, width = x.shape
    group = problem.group_size
    split = x.reshape(batch, heads, rows // group, group, width).transpose(0, 2, 1, 3, 4)
    return split.reshape(batch, rows // group, heads * group, width)


def rows_to_scores(x: jax.Array, problem: AttentionProblem) -> jax.Array:
    """Returns per-row numbers [B, H, T] shaped to broadcast over scores."""
    if problem.group_size == 1:
        return x[..., None]
    batch, _, length = x.shape
    split = x.reshape(batch, problem.num_kv_heads, problem.group_size, length)
    return split.transpose(0, 1, 3, 2)[..., None]


def scores_to_rows(x: jax.Array, problem: AttentionProblem) -> jax.Array:
    """Returns per-row numbers shaped like scores (last axis of 1) as [B, H, T]."""
    if problem.group_size == 1:
        return x[..., 0]
    batch, _, length, _, _ = x.shape
    return x[..., 0].transpose(0, 1, 3, 2).reshape(batch, problem.num_heads, length)


def sinks_to_scores(sinks: jax.Array, problem: AttentionProblem) -> jax.Array:
    """Returns the sinks [H] in fp32, shaped to broadcast over scores."""
    return rows_to_scores(sinks.astype(wide(problem.dtype))[None, :, None], problem)


def mask_to_scores(mask: jax.Array, problem: AttentionProblem) -> jax.Array:
    """Returns a mask [B or 1, T, S] shaped to broadcast over scores."""
    return mask[:, None] if problem.group_size == 1 else mask[:, None, :, None]


def bias_to_scores(bias: jax.Array, problem: AttentionProblem) -> jax.Array:
    """Returns a bias [B or 1, H or 1, T or 1, S or 1] shaped to broadcast over scores."""
    if problem.group_size == 1:
        return bias
    batch, heads, q, k = bias.shape
    if heads == 1:
        return bias[:, :, :, None]
    split = bias.reshape(batch, problem.num_kv_heads, problem.group_size, q, k)
    return split.transpose(0, 1, 3, 2, 4)


def alibi(problem: AttentionProblem, operands: Operands) -> jax.Array:
    """Returns what ALiBi takes off the scores, slope * distance, shaped to broadcast over them."""
    slopes = jax.lax.stop_gradient(operands["alibi_slopes"]).astype(wide(problem.dtype))
    q, k = q_positions(problem, operands), kv_positions(problem, operands)
    distance = jnp.abs(q[:, :, None] - k[:, None, :]).astype(slopes.dtype)
    return bias_to_scores(slopes[None, :, None, None] * distance[:, None], problem)


def dot_keys(x: jax.Array, k: jax.Array, problem: AttentionProblem) -> jax.Array:
    """Returns scores of folded rows against keys or values [B, S, K, D], in fp32."""
    if problem.group_size == 1:
        return jnp.einsum("bthd,bshd->bhts", x, k, preferred_element_type=wide(x.dtype))
    product = jnp.einsum("bkmd,bskd->bkms", x, k, preferred_element_type=wide(x.dtype))
    batch, heads, rows, keys = product.shape
    group = problem.group_size
    return product.reshape(batch, heads, rows // group, group, keys)


def weigh_values(weights: jax.Array, v: jax.Array, problem: AttentionProblem, dtype: Any = None) -> jax.Array:
    """Returns the sum over S of weights times [B, S, K, D], as [B, T, H, D] in `dtype`, by default v's.

    A block's part of a longer sum must be fp32: rounded to bfloat16 each, the parts lose what the sum keeps.
    """
    weights = weights.astype(v.dtype)
    if problem.group_size == 1:
        return jnp.einsum("bhts,bshd->bthd", weights, v, preferred_element_type=dtype)
    folded = jnp.einsum("bkms,bskd->bkmd", _merge_rows(weights), v, preferred_element_type=dtype)
    return unfold_heads(folded, problem)


def weigh_queries(weights: jax.Array, x: jax.Array, problem: AttentionProblem) -> jax.Array:
    """Returns the sum over T and G of weights times folded rows: fp32 [B, S, K, D]."""
    weights = weights.astype(x.dtype)
    if problem.group_size == 1:
        return jnp.einsum("bhts,bthd->bshd", weights, x, preferred_element_type=wide(x.dtype))
    merged = _merge_rows(weights)
    return jnp.einsum("bkms,bkmd->bskd", merged, x, preferred_element_type=wide(x.dtype))


def scale_in_queries(problem: AttentionProblem) -> bool:
    """True where scaling q, which is cheaper, rounds no more than scaling fp32 scores."""
    # A power of two (mantissa 0.5 to frexp) changes the exponent alone: bf16 loses nothing by it.
    return problem.dtype in ("float32", "float64") or math.frexp(problem.scale)[0] == 0.5


def capped_scores(q: jax.Array, k: jax.Array, problem: AttentionProblem) -> jax.Array:
    """Returns scaled, soft-capped scores in fp32, without bias and mask."""
    if scale_in_queries(problem):
        q = q * problem.scale
    scores = dot_keys(fold_heads(q, problem.num_kv_heads), k, problem)
    if not scale_in_queries(problem):
        scores = scores * problem.scale
    if problem.logit_cap is not None:
        # Before the mask: capped, MASKED would be -cap, a score like any other.
        scores = problem.logit_cap * jnp.tanh(scores / problem.logit_cap)
    return scores


def masked_scores(problem: AttentionProblem, operands: Operands, mask: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Returns (scores with bias and mask, capped ones before them) in fp32; masked ones: MASKED."""
    capped = capped_scores(operands["q"], operands["k"], problem)
    scores = capped
    if problem.has_bias:
        scores = scores + bias_to_scores(operands["bias"], problem).astype(scores.dtype)
    if problem.has_alibi:
        scores = scores - alibi(problem, operands).astype(scores.dtype)
    if problem.has_bias:
        # A bias of -inf hides a key as a mask does. Under MASKED, a row of such would weigh the masked ones instead.
        scores = jnp.maximum(scores, MASKED)
    if mask is not None:
        scores = jnp.where(mask_to_scores(mask, problem), scores, MASKED)
    return scores, capped


def _merge_rows(weights: jax.Array) -> jax.Array:
    batch, heads, length, group, keys = weights.shape
    return weights.reshape(batch, heads, length * group, keys)
