"""Tiles of attention of static size: their spans, what a mask leaves of each, and their layout.

Legend: B batch, T queries of a tile, S keys of a tile, H query heads, K key heads, G = H / K. A tile's scores are
[B, K, G, T, S]: queries that share a key head are more rows, [B, K, G * T, D], of one matmul. Queries lie within
groups, so that numbers per query are read in memory order.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from kanawa.kernels.attention.dropout import keep_mask
from kanawa.kernels.attention.operands import q_positions
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.mask_reach import Ranges, reach
from kanawa.kernels.operation import Operands

Visible = Literal["none", "some", "all"]


class Span(NamedTuple):
    """Positions from `start` up to, not including, `stop`."""

    start: int
    stop: int


def spans(length: int, size: int) -> list[Span]:
    """Returns `length` cut into spans of `size`; the last may be shorter."""
    return [Span(start, min(start + size, length)) for start in range(0, length, size)]


def visible(problem: AttentionProblem, queries: Span, keys: Span) -> Visible:
    """Returns how much of a tile the mask leaves, as far as it is known when tracing."""
    mask = problem.mask
    if mask.is_full and not problem.has_kv_lengths:
        return "all"
    # A prefix shows keys that the rest of the mask hides, so nothing is certain.
    if not problem.has_default_positions or mask.prefix:
        return "some"
    # Predicates and segments can hide any key: they are evaluated where the tile is computed.
    some, every = reach(mask, Ranges((queries.start, queries.stop - 1), (keys.start, keys.stop - 1)))
    return "all" if every else "some" if some else "none"


def query_rows(x: jax.Array, queries: Span, problem: AttentionProblem) -> jax.Array:
    """Returns a span of [B, length, H, D] as [B, K, G * T, D]."""
    batch, _, _, width = x.shape
    length, heads, group = queries.stop - queries.start, problem.num_kv_heads, problem.group_size
    cut = x[:, queries.start : queries.stop].reshape(batch, length, heads, group, width)
    return cut.transpose(0, 2, 3, 1, 4).reshape(batch, heads, group * length, width)


def from_query_rows(x: jax.Array, problem: AttentionProblem) -> jax.Array:
    """Undoes `query_rows`: [B, K, G * T, D] to [B, T, H, D]."""
    batch, heads, rows, width = x.shape
    split = x.reshape(batch, heads * problem.group_size, rows // problem.group_size, width)
    return split.transpose(0, 2, 1, 3)


def key_rows(x: jax.Array, keys: Span) -> jax.Array:
    """Returns a span of [B, length, K, D] as [B, K, S, D]."""
    return x[:, keys.start : keys.stop].transpose(0, 2, 1, 3)


def per_row(x: jax.Array, queries: Span, problem: AttentionProblem) -> jax.Array:
    """Returns a span of numbers [B, H, length] as [B, K, G, T]."""
    cut = x[..., queries.start : queries.stop]
    return cut.reshape(x.shape[0], problem.num_kv_heads, problem.group_size, cut.shape[-1])


def tile_mask(problem: AttentionProblem, operands: Operands, queries: Span, keys: Span) -> jax.Array | None:
    """Returns the mask of a tile, bool [B or 1, 1, 1, T, S], or None if nothing is masked."""
    if visible(problem, queries, keys) == "all":
        return None
    at, positions = _positions(problem, operands, queries, keys)
    allowed = problem.mask.allowed(
        at,
        positions,
        _cut(operands, "q_segment_ids", queries),
        _cut(operands, "kv_segment_ids", keys),
        operands.get("prefix_lengths"),
    )
    if problem.has_kv_lengths:
        index = jnp.arange(*keys, dtype=jnp.int32)[None]
        exists = (index < operands["kv_lengths"][:, None])[:, None, :]
        allowed = exists if allowed is None else allowed & exists
    return None if allowed is None else allowed[:, None, None]


def top_for(values: str, top: jax.Array) -> jax.Array:
    """Returns what is subtracted from scores before exp: `top`, and for values in half the bits a multiple of ln 2.

    Weights are then rounded alike whatever is subtracted. Kernels that see a row's keys in other blocks, such as
    decoding, differ in rounded weights no more than in their last bits.
    """
    if values == "float32":
        return top
    # Of numbers near the lowest, the quotient is infinite.
    return jnp.maximum(jnp.ceil(top * (1 / math.log(2))) * math.log(2), top)


def tile_bias(problem: AttentionProblem, bias: jax.Array, queries: Span, keys: Span) -> jax.Array:
    """Returns a tile of the bias [B or 1, H or 1, T or 1, S or 1] in fp32, shaped to broadcast over scores."""
    bias = bias if bias.shape[2] == 1 else bias[:, :, queries.start : queries.stop]
    bias = bias if bias.shape[3] == 1 else bias[..., keys.start : keys.stop]
    batch, heads, *rest = bias.shape
    split = (1, 1) if heads == 1 else (problem.num_kv_heads, problem.group_size)
    return bias.reshape(batch, *split, *rest).astype(jnp.float32)


def bias_cotangent(problem: AttentionProblem, dscores: jax.Array) -> jax.Array:
    """Returns the cotangent [B, K, G, T, S] of a tile's scores as that of its bias, summed where it broadcasts."""
    whole = dscores.reshape(dscores.shape[0], problem.num_heads, *dscores.shape[3:])
    axes = tuple(i for i, size in enumerate(problem.bias_shape or ()) if size == 1)
    return jnp.sum(whole, axis=axes, keepdims=True)


def tile_alibi(problem: AttentionProblem, operands: Operands, queries: Span, keys: Span) -> jax.Array:
    """Returns what ALiBi subtracts from a tile's scores, slope * distance in fp32: [B or 1, K, G, T, S]."""
    slopes = jax.lax.stop_gradient(operands["alibi_slopes"]).astype(jnp.float32)
    at, positions = _positions(problem, operands, queries, keys)
    distance = jnp.abs(at[:, :, None] - positions[:, None, :]).astype(jnp.float32)
    out: jax.Array = slopes.reshape(1, problem.num_kv_heads, problem.group_size, 1, 1) * distance[:, None, None]
    return out


def tile_factors(problem: AttentionProblem, words: tuple[jax.Array, jax.Array], queries: Span, keys: Span) -> jax.Array:
    """Returns dropout's factors for a tile's weights, fp32, 0 or 1 / (1 - rate); words: `row_words`."""
    first, second = (per_row(word, queries, problem)[..., None] for word in words)
    places = jnp.arange(*keys, dtype=jnp.uint32)[None, None, None, None]
    stays = keep_mask(first, second, places, problem.dropout_rate)
    return jnp.where(stays, jnp.float32(1.0 / (1.0 - problem.dropout_rate)), jnp.float32(0.0))


def _positions(problem: AttentionProblem, operands: Operands, queries: Span, keys: Span) -> tuple[jax.Array, jax.Array]:
    """Returns the positions of a tile's queries and keys: int [B or 1, T] and [B or 1, S]."""
    if problem.has_kv_positions:
        positions = operands["kv_positions"][:, keys.start : keys.stop]
    else:
        positions = jnp.arange(*keys, dtype=jnp.int32)[None]
    return q_positions(problem, operands)[:, queries.start : queries.stop], positions


def _cut(operands: Operands, name: str, span: Span) -> jax.Array | None:
    return operands[name][:, span.start : span.stop] if name in operands else None
