"""Masks by position as an interval of keys for each query: what a tile compares its keys with."""

import jax
import jax.numpy as jnp
from kanawa.kernels.attention.operands import q_positions
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.masks import MaskSpec
from kanawa.kernels.operation import Operands

from kanawa_backends_neuron.kernels.attention.ranges import Span

#: What a mask may be made of, for the keys that a query sees to lie side by side.
PARTS = frozenset({"causal", "window", "chunk", "segments", "prefix"})


def not_interval(mask: MaskSpec) -> str:
    """Returns why the keys that a query sees under a mask are no interval; "" if they are one, segments aside."""
    extra = sorted(mask.uses - PARTS)
    if extra:
        return f"mask has {', '.join(extra)}; the kernel knows {', '.join(sorted(PARTS))}"
    if mask.prefix and (mask.window is not None or mask.chunk is not None):
        return f"mask {mask.describe()}: a prefix beside a window or chunk leaves keys that don't lie side by side"
    return ""


def span_of(problem: AttentionProblem) -> Span:
    """Returns what the mask says by position alone: everything, where positions are only known when running."""
    mask = problem.mask
    if not problem.has_default_positions or mask.prefix:
        return Span()
    left, right = mask.window or (None, None)
    return Span(mask.causal, -1 if left is None else left, -1 if right is None else right, mask.chunk or 0)


def needs_bounds(problem: AttentionProblem) -> bool:
    """Returns whether the span leaves something to compare: chunks, prefixes, positions that are operands."""
    by_position = problem.mask.uses - {"segments"}
    moved = problem.has_kv_lengths or (problem.has_q_positions and bool(by_position))
    return moved or problem.mask.chunk is not None or problem.mask.prefix


def bounds_of(problem: AttentionProblem, operands: Operands) -> jax.Array:
    """Returns the first and last key that each query may see: fp32 [B or 1, T, 2]; last < first for none."""
    mask = problem.mask
    at = q_positions(problem, operands).astype(jnp.int32)
    low, high = jnp.zeros_like(at), jnp.full_like(at, problem.kv_length - 1)
    if mask.causal:
        high = jnp.minimum(high, at)
    if mask.window is not None:
        left, right = mask.window
        low = low if left is None else jnp.maximum(low, at - left)
        high = high if right is None else jnp.minimum(high, at + right)
    if mask.chunk is not None:
        start = at // mask.chunk * mask.chunk
        low, high = jnp.maximum(low, start), jnp.minimum(high, start + mask.chunk - 1)
    if mask.prefix:
        last = operands["prefix_lengths"].astype(jnp.int32)[:, None] - 1
        # An exception to causality; alone, the prefix is all there is to see.
        high = jnp.maximum(high, last) if mask.causal else jnp.broadcast_to(last, (last.shape[0], at.shape[1]))
        low = jnp.broadcast_to(low, high.shape)
    if problem.has_kv_lengths:
        high = jnp.minimum(high, operands["kv_lengths"].astype(jnp.int32)[:, None] - 1)
    low, high = jnp.broadcast_arrays(low, high)
    return jnp.stack([low, high], axis=-1).astype(jnp.float32)
