"""Attention problems that every kernel is asked, and random operands for any problem."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from sashimono.kernels.attention.problem import AttentionProblem
from sashimono.kernels.attention.reference import ReferenceAttention
from sashimono.kernels.compare import Examples
from sashimono.kernels.masks import CAUSAL, FULL, MaskSpec, sliding_window
from sashimono.kernels.operation import Operands

BASE = AttentionProblem(
    batch=2,
    q_length=256,
    kv_length=256,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    v_head_dim=64,
    dtype="float32",
    mask=CAUSAL,
    scale=0.125,
)

#: One feature at a time, then some that meet in real models.
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"dtype": "bfloat16"},
    {"mask": FULL},
    {"num_kv_heads": 4},
    {"num_kv_heads": 1},
    {"mask": sliding_window(48)},
    {"mask": MaskSpec(window=(16, 32))},
    {"mask": MaskSpec(causal=True, chunk=64)},
    {"mask": MaskSpec(causal=True, segments=True)},
    {"mask": MaskSpec(causal=True, prefix=True)},
    {"logit_cap": 2.0},
    {"has_sinks": True},
    {"bias_shape": (1, 4, 256, 256)},
    {"bias_shape": (2, 1, 1, 256), "mask": FULL},
    {"head_dim": 128, "v_head_dim": 128, "scale": 0.1},
    {"head_dim": 192, "v_head_dim": 128},
    {"head_dim": 256, "v_head_dim": 256, "batch": 1},
    {"q_length": 128, "mask": FULL},
    {"q_length": 128, "has_q_positions": True},
    {"mask": sliding_window(48) & MaskSpec(segments=True), "has_sinks": True},
    {"mask": sliding_window(100), "logit_cap": 5.0, "dtype": "bfloat16"},
    {"mode": "prefill", "q_length": 64, "has_kv_lengths": True},
    {"mode": "decode", "q_length": 1, "has_kv_lengths": True},
    {"mode": "decode", "q_length": 1, "has_kv_lengths": True, "page_size": 16},
    {"mode": "prefill", "q_length": 64, "has_kv_lengths": True, "page_size": 16},
    {
        "mode": "prefill",
        "batch": 1,
        "q_length": 40,
        "has_kv_lengths": True,
        "page_size": 16,
        "ragged_sequences": 3,
    },
)


def example_operands(problem: AttentionProblem, key: jax.Array) -> dict[str, Any]:
    """Returns random operands: packed segments with padding, varied lengths, shuffled pages."""
    p = problem
    keys = iter(jax.random.split(key, 16))
    rows = p.batch if p.ragged_sequences is None else p.ragged_sequences
    entries = 0 if p.page_size is None else p.kv_length // p.page_size
    kv = (p.batch, p.kv_length) if p.page_size is None else (rows * entries, p.page_size)

    def normal(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape, jnp.float32).astype(p.dtype)

    found: dict[str, Any] = {
        "q": normal(p.batch, p.q_length, p.num_heads, p.head_dim),
        "k": normal(*kv, p.num_kv_heads, p.head_dim),
        "v": normal(*kv, p.num_kv_heads, p.v_head_dim),
    }
    if p.bias_shape is not None:
        found["bias"] = normal(*p.bias_shape)
    if p.has_sinks:
        found["sinks"] = normal(p.num_heads)
    first = max(p.kv_length - p.q_length, 0)
    if p.has_q_positions:
        found["q_positions"] = first + jnp.arange(p.q_length, dtype=jnp.int32)[None]
    if p.has_kv_positions:
        found["kv_positions"] = jnp.arange(p.kv_length, dtype=jnp.int32)[None]
    if p.mask.needs_segments:
        ids = _segments(next(keys), p.batch, max(p.q_length, p.kv_length))
        found["q_segment_ids"] = ids[:, ids.shape[1] - p.q_length :]
        found["kv_segment_ids"] = ids[:, ids.shape[1] - p.kv_length :]
    if p.mask.needs_prefix:
        lengths = jax.random.randint(next(keys), (p.batch,), 0, p.kv_length + 1, jnp.int32)
        found["prefix_lengths"] = lengths
    if p.has_kv_lengths:
        least = min(p.q_length, p.kv_length)
        found["kv_lengths"] = jax.random.randint(
            next(keys), (rows,), least, p.kv_length + 1, jnp.int32
        )
    if p.page_size is not None:
        order = jax.random.permutation(next(keys), rows * entries).astype(jnp.int32)
        found["page_table"] = order.reshape(rows, entries)
    if p.ragged_sequences is not None:
        cuts = jnp.linspace(0, p.q_length, p.ragged_sequences + 1)
        found["query_starts"] = cuts.astype(jnp.int32)
    return found


def _segments(key: jax.Array, batch: int, length: int) -> jax.Array:
    """Returns ids 1, 2, 3 and then padding 0, cut at random places: int32 [batch, length]."""
    cuts = jnp.sort(jax.random.randint(key, (batch, 3), 1, length), axis=-1)
    index = jnp.arange(length)[None, :, None]
    passed = jnp.sum((index >= cuts[:, None, :]).astype(jnp.int32), axis=-1)
    return jnp.where(passed == 3, 0, passed + 1)


def _specified(problem: AttentionProblem, operands: Operands, out: jax.Array) -> jax.Array:
    """Returns the output without the rows of padding, which the contract leaves open."""
    if "q_segment_ids" not in operands:
        return out
    real = (operands["q_segment_ids"] != 0)[:, :, None, None]
    return jnp.where(real, out, jnp.zeros((), out.dtype))


EXAMPLES = Examples(
    reference=ReferenceAttention(),
    problems=tuple(dataclasses.replace(BASE, **change) for change in CHANGES),
    operands=example_operands,
    differentiable=lambda problem: problem.mode == "train",
    specified=_specified,
)
