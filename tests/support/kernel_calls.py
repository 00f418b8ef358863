"""What the tables of docs/reference/kernel-features.md ask: usual calls of operations, and what models add to them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.diagonal_recurrence import DiagonalRecurrenceProblem
from kanawa.kernels.grouped_matmul import GroupedMatmulProblem
from kanawa.kernels.linear_recurrence import LinearRecurrenceProblem
from kanawa.kernels.masks import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa.kernels.matmul.problem import MatmulProblem
from kanawa.kernels.quantized_matmul import QuantizedMatmulProblem
from kanawa.kernels.softmax_cross_entropy import CrossEntropyProblem
from kanawa.testing.compare import examples_for

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

_FP32: dict[str, Any] = dict.fromkeys(("x_dtype", "weight_dtype", "sum_dtype", "dtype"), "float32")
_BF16: dict[str, Any] = dict.fromkeys(("x_dtype", "weight_dtype", "sum_dtype", "dtype"), "bfloat16")
_LOSS = CrossEntropyProblem(tokens=8192, width=4096, vocab=128256, dtype="bfloat16", weight_dtype="bfloat16")
_DELTA = LinearRecurrenceProblem(
    batch=4,
    length=4096,
    num_groups=16,
    num_heads=32,
    key_dim=128,
    value_dim=128,
    dtype="bfloat16",
    delta=True,
    has_segments=True,
)

#: Calls of usual size of the other operations, by what they are for.
CALLS: Mapping[str, Mapping[str, Any]] = {
    "diagonal_recurrence": {"RG-LRU": DiagonalRecurrenceProblem(batch=4, length=4096, channels=2560)},
    "grouped_matmul": {
        f"{name}, {dtype}": GroupedMatmulProblem(
            rows=rows, inner=2048, columns=1536, groups=64, dtype=dtype, rhs_dtype=dtype
        )
        for name, rows in (("training", 65536), ("decoding", 64))
        for dtype in ("bfloat16", "float32")
    },
    "linear_recurrence": {
        "Mamba-2": LinearRecurrenceProblem(
            batch=4, length=4096, num_groups=1, num_heads=64, key_dim=128, value_dim=64, dtype="bfloat16"
        ),
        "gated delta rule, packed": _DELTA,
    },
    "matmul": {
        f"{name}, {dtypes['x_dtype']}": MatmulProblem(inner=4096, outputs=14336, **sizes, **dtypes)
        for name, sizes in (
            ("training", {"rows": 8192}),
            ("prefill", {"rows": 512, "purpose": "prefill"}),
            ("decoding", {"rows": 16, "purpose": "decode"}),
            ("decoding, outputs first", {"rows": 16, "purpose": "decode", "weight_layout": "outputs_first"}),
        )
        for dtypes in (_BF16, _FP32)
    },
    "quantized_matmul": {
        f"{lhs} by {rhs}, {rows} rows": QuantizedMatmulProblem(
            lhs_shape=(rows, 4096),
            rhs_shape=(4096, 14336),
            num_contracted=1,
            groups=32 if rhs in ("int4", "nf4") else 1,
            lhs_format=lhs,
            rhs_format=rhs,
            dtype="bfloat16",
        )
        for lhs, rhs in examples_for("quantized_matmul").space.features["formats"]
        if lhs != "float32"
        for rows in (8192, 16)
    },
    "softmax_cross_entropy": {
        name: dataclasses.replace(_LOSS, **more)
        for name, more in (
            ("a head", {}),
            ("an embedding, soft cap", {"tied": True, "logit_cap": 30.0}),
            ("z-loss", {"z_loss": 1e-4}),
        )
    },
}


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
