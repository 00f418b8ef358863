"""Shapes of real models, in training and in serving, for which every GPU kernel is compiled ahead of time.

`packages/backends-gpu/tests/aot` asserts what comes of them and `benchmarks/gpu_compiled.py` writes the table in
`docs/results/kernels-compiled.md`. A new kernel gets rows here.
"""

import dataclasses
from typing import Any

from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.grouped_matmul import GroupedMatmulProblem
from kanawa.kernels.masks import CAUSAL, MaskSpec, sliding_window
from kanawa.kernels.quantized_matmul import QuantizedMatmulProblem

#: The GPUs compiled for.
TARGETS = ("h100", "b200")


@dataclasses.dataclass(frozen=True)
class Shape:
    """One problem that a kernel is compiled for; `differentiated` with its backward."""

    kernel: str
    title: str
    problem: Any
    differentiated: bool = False


#: Llama 3 8B, 32 rows of up to 8k tokens.
_DECODE = AttentionProblem(
    batch=32, q_length=1, kv_length=8192, num_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128, dtype="bfloat16",
    mask=CAUSAL, scale=128**-0.5, mode="decode", has_kv_lengths=True,
)  # fmt: skip
#: 2,048 tokens of 64 sequences: prompts and tokens being decoded side by side.
_MIXED: dict[str, Any] = {
    "mode": "prefill", "batch": 1, "q_length": 2048, "page_size": 16, "ragged_sequences": 64,
}  # fmt: skip
_EXPERTS = GroupedMatmulProblem(rows=65536, inner=4096, columns=1536, groups=16, dtype="bfloat16", rhs_dtype="bfloat16")
_WEIGHTS = QuantizedMatmulProblem(
    lhs_shape=(16, 4096), rhs_shape=(4096, 14336), num_contracted=1, groups=32, lhs_format="bfloat16",
    rhs_format="int4", dtype="bfloat16",
)  # fmt: skip
_EIGHT = dataclasses.replace(
    _WEIGHTS, lhs_shape=(8, 1024, 4096), lhs_format="float8_e4m3fn", rhs_format="float8_e4m3fn", groups=1
)


#: A Llama's training at 4k.
_TRAIN = AttentionProblem(
    batch=2, q_length=4096, kv_length=4096, num_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128,
    dtype="bfloat16", mask=CAUSAL, scale=128**-0.5,
)  # fmt: skip
_PACKED = MaskSpec(causal=True, segments=True)


def _decode(kernel: str, title: str, **changes: Any) -> Shape:
    if "head_dim" in changes:
        changes = {"v_head_dim": changes["head_dim"], "scale": changes["head_dim"] ** -0.5, **changes}
    return Shape(f"attention.gpu.{kernel}", title, dataclasses.replace(_DECODE, **changes))


def _train(title: str, **changes: Any) -> Shape:
    return Shape("attention.gpu.pallas", title, dataclasses.replace(_TRAIN, **changes), differentiated=True)


SHAPES = (
    _train("packed 4k, sinks", mask=_PACKED, has_sinks=True),
    _train("heads of 64, window, 32k", batch=1, q_length=32768, kv_length=32768, head_dim=64, v_head_dim=64,
           mask=MaskSpec(causal=True, window=(1023, None), segments=True)),
    _train("Gemma, heads of 256, cap", num_heads=16, head_dim=256, v_head_dim=256, logit_cap=50.0),
    _decode("decode", "Llama 3 8B, 32 x 8k"),
    _decode("decode", "one row of 128k", batch=1, kv_length=131072),
    _decode("decode", "heads of 64, 128 x 4k", head_dim=64, batch=128, kv_length=4096),
    _decode(
        "decode", "Gemma, heads of 256, window, cap",
        head_dim=256, num_heads=16, mask=sliding_window(4096), logit_cap=50.0,
    ),
    _decode("decode", "sinks and ALiBi", has_sinks=True, has_alibi=True),
    _decode("decode", "fp32, uneven widths", dtype="float32", head_dim=192, v_head_dim=128),
    _decode("decode", "8 tokens at a time", q_length=8, mode="prefill"),
    _decode("paged", "Llama 3 8B, 32 x 8k, pages of 16", page_size=16),
    _decode("paged", "256 x 32k, pages of 64", batch=256, kv_length=32768, page_size=64),
    _decode(
        "paged", "gpt-oss: sinks, window, heads of 64",
        head_dim=64, num_heads=64, mask=sliding_window(128), has_sinks=True, page_size=16,
    ),
    _decode("paged", "prefill and decoding, 2k tokens", **_MIXED),
    _decode("paged", "the same, heads of 256, cap", **_MIXED, head_dim=256, num_heads=16, logit_cap=50.0),
    _decode("paged", "the same, chunks of 8k", **_MIXED, mask=MaskSpec(causal=True, chunk=8192), kv_length=32768),
    Shape("grouped_matmul.gpu.triton", "16 experts, 64k rows", _EXPERTS, differentiated=True),
    Shape(
        "grouped_matmul.gpu.triton", "128 experts, 512 rows (decoding)",
        dataclasses.replace(_EXPERTS, rows=512, groups=128, inner=2048, columns=768),
    ),
    Shape("quantized_matmul.gpu.weights", "int4 in groups of 128, 16 rows", _WEIGHTS),
    Shape("quantized_matmul.gpu.weights", "nf4, 16 rows", dataclasses.replace(_WEIGHTS, rhs_format="nf4")),
    Shape("quantized_matmul.gpu.weights", "int4, 4k rows", dataclasses.replace(_WEIGHTS, lhs_shape=(4096, 4096))),
    Shape("quantized_matmul.gpu.xla", "float8, 8k rows", _EIGHT),
    Shape(
        "quantized_matmul.gpu.xla", "int8, 8k rows",
        dataclasses.replace(_EIGHT, lhs_format="int8", rhs_format="int8"),
    ),
    Shape(
        "quantized_matmul.gpu.xla", "int8 weights, 16 rows",
        dataclasses.replace(_WEIGHTS, rhs_format="int8", groups=1),
    ),
)  # fmt: skip
