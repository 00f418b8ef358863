"""Attention problems that every kernel is asked, the features that others are generated from, and random operands."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.kernels.masks import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa.kernels.operation import Operands
from kanawa.testing.compare import Examples

from kanawa_kernel_tools.examples.space import Space

#: Lengths are small, because kernels are interpreted; 131 and 200 are there for what isn't in multiples of a block.
FEATURES: dict[str, tuple[Any, ...]] = {
    "mode": ("train", "prefill", "decode"),
    "dtype": ("float32", "bfloat16", "float16"),
    "batch": (2, 1, 3),
    "q_length": (128, 256, 384, 64, 131, 40),
    # As long as the queries are, unless it says otherwise.
    "kv_length": (None, 256, 512, 384, 200),
    # Query heads and key heads.
    "heads": ((4, 2), (4, 4), (4, 1), (6, 3), (8, 1), (1, 1)),
    # Of queries and keys, and of values.
    "head_dims": ((64, 64), (128, 128), (80, 80), (96, 96), (192, 128), (192, 192), (256, 256), (64, 128)),
    "scale": (None, 0.25),
    "causal": (True, False),
    "window": (None, (31, None), (100, None), (16, 24), (None, 8)),
    "chunk": (None, 64, 48),
    "prefix": (False, True),
    "segments": (False, True),
    "predicates": ((), ("dilated",)),
    "any_of": ((), ((MaskSpec(causal=True, window=(20, None)), MaskSpec(causal=True, chunk=50)),)),
    "logit_cap": (None, 5.0, 30.0),
    "sinks": (False, True),
    "alibi": (False, True),
    "dropout_rate": (0.0, 0.3),
    # Which dimensions of [batch, heads, queries, keys] the bias has; the others broadcast.
    "bias": (None, "bhqk", "hqk", "bk", "qk", "h"),
    "positions": (None, "q", "q kv"),
    "kv_lengths": (False, True),
    "page_size": (None, 16, 64, 128),
    "ragged_sequences": (None, 3),
}


def build(choice: Mapping[str, Any]) -> AttentionProblem | None:
    """Returns the problem of a choice; None where its values can't meet in one call."""
    c = choice
    serves = c["mode"] != "train"
    queries = 1 if c["mode"] == "decode" and c["ragged_sequences"] is None else c["q_length"]
    keys = c["kv_length"] or c["q_length"]
    paged = c["page_size"] is not None
    ragged = c["ragged_sequences"] is not None
    if paged:
        # Whole pages; with a table, where rows end is an operand.
        keys = -(-keys // c["page_size"]) * c["page_size"]
    mask = _mask(c)
    positions = set((c["positions"] or "").split())
    # Two lengths don't say where queries are among the keys: then positions are operands.
    placed = mask.uses - {"segments", "prefix"} or c["alibi"]
    if queries != keys and not c["kv_lengths"] and placed:
        positions.add("q")
    impossible = (
        (paged or ragged or c["kv_lengths"]) and not serves,
        paged and not c["kv_lengths"],
        paged and ("kv" in positions or mask.needs_segments),
        ragged and not paged,
        ragged and (mask.needs_prefix or c["bias"] is not None),
        c["kv_lengths"] and queries > keys,
        serves and c["dropout_rate"] > 0,
        c["kv_lengths"] and mask.needs_segments,
    )
    if any(impossible):
        return None
    return AttentionProblem(
        batch=1 if ragged else c["batch"],
        q_length=queries,
        kv_length=keys,
        num_heads=c["heads"][0],
        num_kv_heads=c["heads"][1],
        head_dim=c["head_dims"][0],
        v_head_dim=c["head_dims"][1],
        dtype=c["dtype"],
        mask=mask,
        scale=c["scale"] or c["head_dims"][0] ** -0.5,
        logit_cap=c["logit_cap"],
        bias_shape=_bias_shape(c, queries, keys),
        has_sinks=c["sinks"],
        has_alibi=c["alibi"],
        dropout_rate=c["dropout_rate"],
        has_q_positions="q" in positions,
        has_kv_positions="kv" in positions,
        has_kv_lengths=c["kv_lengths"],
        mode=c["mode"],
        page_size=c["page_size"],
        ragged_sequences=c["ragged_sequences"],
    )


def _mask(c: Mapping[str, Any]) -> MaskSpec:
    return MaskSpec(
        causal=c["causal"],
        window=c["window"],
        chunk=c["chunk"],
        prefix=c["prefix"],
        segments=c["segments"],
        predicates=c["predicates"],
        any_of=c["any_of"],
    )


def _bias_shape(c: Mapping[str, Any], queries: int, keys: int) -> tuple[int, int, int, int] | None:
    if c["bias"] is None:
        return None
    batch, heads, rows, columns = (
        size if letter in c["bias"] else 1
        for letter, size in zip("bhqk", (c["batch"], c["heads"][0], queries, keys), strict=True)
    )
    return batch, heads, rows, columns


SPACE = Space(FEATURES, build)


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
