"""What the table of attention kernels asks: typical calls of training and serving, and what models add to them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.masks import CAUSAL, FULL, MaskSpec, sliding_window

TRAINING = AttentionProblem(
    batch=2,
    q_length=2048,
    kv_length=2048,
    num_heads=8,
    num_kv_heads=8,
    head_dim=128,
    v_head_dim=128,
    dtype="bfloat16",
    mask=CAUSAL,
    scale=128**-0.5,
)
#: For a kernel that supports nothing else.
PACKED = dataclasses.replace(TRAINING, mask=MaskSpec(causal=True, segments=True))
_CACHE: dict[str, Any] = {"has_kv_lengths": True, "page_size": 64}

#: Calls of serving: a whole prompt, more of one behind what a cache holds, one token a row; over dense keys and pages.
SERVING: Mapping[str, dict[str, Any]] = {
    "prefill": {"mode": "prefill"},
    "prefill, cache": {"mode": "prefill", "q_length": 256, "has_kv_lengths": True},
    "prefill, pages": {"mode": "prefill", "q_length": 256, **_CACHE},
    "decode, cache": {"mode": "decode", "q_length": 1, "has_kv_lengths": True},
    "decode, pages": {"mode": "decode", "q_length": 1, **_CACHE},
    "ragged batch, pages": {"mode": "prefill", "batch": 1, "q_length": 256, **_CACHE, "ragged_sequences": 8},
}

#: What a problem may have beside causality. A change that makes no sense for a call (packed rows of a cache) is left
#: out there.
FEATURES: Mapping[str, dict[str, Any]] = {
    "causal": {},
    "full (encoders)": {"mask": FULL},
    "sliding window": {"mask": sliding_window(512)},
    "two-sided window": {"mask": MaskSpec(window=(256, 256))},
    "chunks": {"mask": MaskSpec(causal=True, chunk=512)},
    "prefix": {"mask": MaskSpec(causal=True, prefix=True)},
    "predicate masks": {"mask": MaskSpec(causal=True, predicates=("dilated",))},
    "packed segments": {"mask": MaskSpec(causal=True, segments=True)},
    "packed, sliding window": {"mask": sliding_window(512) & MaskSpec(segments=True)},
    "own positions": {"has_q_positions": True, "has_kv_positions": True},
    "dense bias": {"bias_shape": "full"},
    "ALiBi": {"has_alibi": True},
    "dropout": {"dropout_rate": 0.1},
    "sinks": {"has_sinks": True},
    "soft cap": {"logit_cap": 30.0},
    "grouped heads": {"num_kv_heads": 2},
}

DTYPES = ("float32", "bfloat16", "float16")
HEAD_DIMS = ((64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256))
#: A length that each of these divides, and nothing larger of them.
LENGTHS = {1: 2047, 2: 2046, 8: 2040, 16: 2032, 64: 1984, 128: 1920, 256: 1792, 512: 1536}


def changed(base: AttentionProblem, change: Mapping[str, Any]) -> AttentionProblem | None:
    """Returns the base with a feature; None where such a call can't be."""
    change = dict(change)
    if change.get("bias_shape") == "full":
        change["bias_shape"] = (base.batch, base.num_heads, base.q_length, base.kv_length)
    if "mask" in change and base.has_segments:
        change["mask"] = change["mask"] & MaskSpec(segments=True)
    if "head_dim" in change:
        change["scale"] = change["head_dim"] ** -0.5
    problem = dataclasses.replace(base, **change)
    impossible = (
        problem.mode != "train" and problem.dropout_rate > 0,
        (problem.has_kv_lengths or problem.paged) and (problem.has_segments or problem.has_kv_positions),
        problem.ragged_sequences is not None and (problem.has_bias or problem.mask.needs_prefix),
    )
    return None if any(impossible) else problem


def of_length(base: AttentionProblem, length: int) -> AttentionProblem:
    """Returns the base with that many keys, and queries where it has as many."""
    queries = length if base.q_length == base.kv_length else base.q_length
    return dataclasses.replace(base, q_length=queries, kv_length=length)
