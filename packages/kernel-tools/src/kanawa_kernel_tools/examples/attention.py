"""Attention problems that every kernel is asked, and random operands for any problem."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.kernels.masks import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa.kernels.operation import Operands
from kanawa.testing.compare import Examples

from kanawa_kernel_tools.examples.attention_space import SPACE

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

#: A row of an 8B model's training batch.
TYPICAL = AttentionProblem(
    batch=1,
    q_length=4096,
    kv_length=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    v_head_dim=128,
    dtype="bfloat16",
    mask=CAUSAL,
    scale=128**-0.5,
)

#: What models and caches ask for; combinations of other features are generated (`space`).
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"dtype": "bfloat16"},
    {"mask": FULL, "num_kv_heads": 4},
    {"mask": MaskSpec(causal=True, chunk=64)},
    {"mask": MaskSpec(causal=True, prefix=True)},
    {"mask": sliding_window(48) & MaskSpec(segments=True), "has_sinks": True},
    {"mask": sliding_window(100), "logit_cap": 5.0, "dtype": "bfloat16"},
    {"bias_shape": (1, 4, 256, 256)},
    {"head_dim": 192, "v_head_dim": 128, "mask": MaskSpec(causal=True, segments=True)},
    {"head_dim": 256, "v_head_dim": 256, "batch": 1, "num_kv_heads": 1},
    {"q_length": 128, "has_q_positions": True},
    {"mode": "decode", "q_length": 1, "has_kv_lengths": True},
    {"mode": "decode", "q_length": 1, "has_kv_lengths": True, "page_size": 16},
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
    if p.has_alibi:
        operands["alibi_slopes"] = rng.uniform(0.01, 0.5, p.num_heads).astype(np.float32)
    if p.dropout_rate:
        operands["dropout_key"] = rng.integers(0, 2**32, 2, np.uint32)
        # `dropout_ids` by NumPy: examples are also made where the devices in force can only compile.
        queries = np.arange(p.batch * p.q_length, dtype=np.uint32).reshape(p.batch, p.q_length)
        operands |= {"dropout_queries": queries, "dropout_heads": np.arange(p.num_heads, dtype=np.uint32)}
    operands |= _positions(p, rng)
    if p.mask.needs_segments:
        ids = _segments(rng, p.batch, max(p.q_length, p.kv_length))
        operands["q_segment_ids"] = ids[:, ids.shape[1] - p.q_length :]
        operands["kv_segment_ids"] = ids[:, ids.shape[1] - p.kv_length :]
    if p.mask.needs_prefix:
        operands["prefix_lengths"] = rng.integers(0, p.kv_length + 1, p.batch)
    if p.ragged_sequences is not None:
        operands["query_starts"] = _query_starts(rng, p.q_length, p.ragged_sequences)
    if p.has_kv_lengths:
        operands["kv_lengths"] = _kv_lengths(p, rng, operands.get("query_starts"), rows)
    if p.page_size is not None:
        operands["page_table"] = _page_table(rng, operands["kv_lengths"], entries, p.page_size)
    return {n: x.astype(np.int32) if x.dtype == np.int64 else x for n, x in operands.items()}


def _positions(p: AttentionProblem, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns the operands of positions: queries late among the keys, keys with gaps; of each row or of all."""
    positions: dict[str, np.ndarray] = {}
    rows = p.batch if rng.random() < 0.5 else 1
    keys = np.tile(np.arange(p.kv_length), (rows, 1))
    if p.has_kv_positions:
        keys = np.cumsum(1 + (rng.random((rows, p.kv_length)) < 0.1), axis=1) - 1
        positions["kv_positions"] = keys
    if p.has_q_positions:
        first = keys[:, -1:] + 1 - p.q_length
        positions["q_positions"] = np.maximum(first, 0) + np.arange(p.q_length)
    return positions


def _query_starts(rng: np.random.Generator, queries: int, sequences: int) -> np.ndarray:
    """Returns random cuts: sequences may be empty, and the last queries may belong to none, as in a padded batch."""
    return np.concatenate([[0], np.sort(rng.integers(0, queries + 1, sequences))])


def _kv_lengths(p: AttentionProblem, rng: np.random.Generator, starts: np.ndarray | None, rows: int) -> np.ndarray:
    """Returns how many keys each row has: at least its queries, and none in an unused slot."""
    least = np.full(rows, p.q_length) if starts is None else np.diff(starts)
    lengths = rng.integers(np.minimum(least, p.kv_length), p.kv_length + 1)
    unused = rng.random(rows) < 0.2
    return np.where(unused & ((least == 0) | (starts is None)), 0, lengths)


def _page_table(rng: np.random.Generator, kv_lengths: np.ndarray, entries: int, page_size: int) -> np.ndarray:
    """Returns shuffled pages. An entry behind a row's last key is never looked at, and holds anything."""
    rows = len(kv_lengths)
    table = rng.permutation(rows * entries).reshape(rows, entries)
    needed = np.arange(entries) * page_size < kv_lengths[:, None]
    return np.where(needed, table, rng.choice([-1, rows * entries, 2**30], table.shape))


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
    space=SPACE,
    typical=TYPICAL,
)
