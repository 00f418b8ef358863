"""Attention problems that every kernel is asked, and random operands for any problem."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.kernels.compare import Examples
from kanawa.kernels.masks import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa.kernels.operation import Operands

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


def example_operands(problem: AttentionProblem, rng: np.random.Generator) -> dict[str, Any]:
    """Returns random operands: packed segments with padding, varied lengths, shuffled pages."""
    p = problem
    rows = p.batch if p.ragged_sequences is None else p.ragged_sequences
    entries = 0 if p.page_size is None else p.kv_length // p.page_size
    kv = (p.batch, p.kv_length) if p.page_size is None else (rows * entries, p.page_size)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(jnp.dtype(p.dtype))

    operands: dict[str, Any] = {
        "q": normal(p.batch, p.q_length, p.num_heads, p.head_dim),
        "k": normal(*kv, p.num_kv_heads, p.head_dim),
        "v": normal(*kv, p.num_kv_heads, p.v_head_dim),
    }
    if p.bias_shape is not None:
        operands["bias"] = normal(*p.bias_shape)
    if p.has_sinks:
        operands["sinks"] = normal(p.num_heads)
    first = max(p.kv_length - p.q_length, 0)
    if p.has_q_positions:
        operands["q_positions"] = np.arange(first, first + p.q_length)[None]
    if p.has_kv_positions:
        operands["kv_positions"] = np.arange(p.kv_length)[None]
    if p.mask.needs_segments:
        ids = _segments(rng, p.batch, max(p.q_length, p.kv_length))
        operands["q_segment_ids"] = ids[:, ids.shape[1] - p.q_length :]
        operands["kv_segment_ids"] = ids[:, ids.shape[1] - p.kv_length :]
    if p.mask.needs_prefix:
        operands["prefix_lengths"] = rng.integers(0, p.kv_length + 1, p.batch)
    if p.has_kv_lengths:
        least = min(p.q_length, p.kv_length)
        operands["kv_lengths"] = rng.integers(least, p.kv_length + 1, rows)
    if p.page_size is not None:
        operands["page_table"] = rng.permutation(rows * entries).reshape(rows, entries)
    if p.ragged_sequences is not None:
        operands["query_starts"] = np.linspace(0, p.q_length, p.ragged_sequences + 1).astype(int)
    return {n: x.astype(np.int32) if x.dtype == np.int64 else x for n, x in operands.items()}


def _segments(rng: np.random.Generator, batch: int, length: int) -> np.ndarray:
    """Returns ids 1, 2, 3 and then padding 0, cut at random places: int [batch, length]."""
    cuts = np.sort(rng.integers(1, length, (batch, 1, 3)), axis=-1)
    passed = np.sum(np.arange(length)[None, :, None] >= cuts, axis=-1)
    return np.where(passed == 3, 0, passed + 1)


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
