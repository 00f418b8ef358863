"""Matmuls that every kernel is asked, and random operands for any problem."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from kanawa.kernels.matmul.problem import MatmulProblem, ReferenceMatmul
from kanawa.testing.compare import Examples

from kanawa_kernel_tools.examples.space import Space, as_fields

_FP32: dict[str, Any] = dict.fromkeys(("x_dtype", "weight_dtype", "sum_dtype", "dtype"), "float32")
_BF16: dict[str, Any] = dict.fromkeys(("x_dtype", "weight_dtype", "sum_dtype", "dtype"), "bfloat16")
_TO_FP32 = _BF16 | {"sum_dtype": "float32", "dtype": "float32"}

BASE = MatmulProblem(rows=128, inner=256, outputs=96, **_FP32)

#: A feed-forward projection of an 8B model.
TYPICAL = MatmulProblem(rows=4096, inner=4096, outputs=14336, **_BF16)

CHANGES: tuple[dict[str, Any], ...] = (
    {},
    _BF16,
    {"weight_layout": "outputs_first"},
    {"x_layout": "inner_first"},
    {"x_layout": "inner_first", "weight_layout": "outputs_first", **_BF16},
    {"rows": 77, "inner": 40, "outputs": 33},
    {"rows": 8, "purpose": "decode", "weight_layout": "outputs_first"},
    {"rows": 1, "purpose": "decode", "weight_layout": "outputs_first", **_BF16},
    {"rows": 100, "purpose": "prefill", "weight_layout": "outputs_first", **_BF16},
    {"rows": 4, "outputs": 512, "purpose": "decode", "logits": True, "weight_layout": "outputs_first", **_TO_FP32},
    {"outputs": 512, "logits": True, **_TO_FP32},
    # The gradient of logits, in fp32, by a weight in bfloat16.
    {"inner": 512, "logits": True, **_FP32, "weight_dtype": "bfloat16"},
    {"precision": "highest", "outputs": 8},
)

FEATURES: dict[str, tuple[Any, ...]] = {
    "dtypes": (
        ("float32", "float32", "float32", "float32"),
        ("bfloat16", "bfloat16", "bfloat16", "bfloat16"),
        ("bfloat16", "bfloat16", "float32", "float32"),
        ("bfloat16", "bfloat16", "float32", "bfloat16"),
        ("float32", "bfloat16", "float32", "float32"),
        ("bfloat16", "float32", "float32", "float32"),
        ("float16", "float16", "float16", "float16"),
    ),
    "rows": (128, 256, 64, 77, 16, 8, 1, 1024),
    "inner": (256, 128, 512, 96, 40, 1),
    "outputs": (128, 256, 512, 96, 33, 1),
    "x_layout": ("rows_first", "inner_first"),
    "weight_layout": ("inner_first", "outputs_first"),
    "purpose": ("train", "prefill", "decode"),
    "logits": (False, True),
    "precision": ("default", "highest"),
}


def example_operands(problem: MatmulProblem, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns random operands."""
    return {
        "x": rng.standard_normal(problem.x_shape).astype(jnp.dtype(problem.x_dtype)),
        "weight": rng.standard_normal(problem.weight_shape).astype(jnp.dtype(problem.weight_dtype)),
    }


EXAMPLES = Examples(
    reference=ReferenceMatmul(),
    problems=tuple(dataclasses.replace(BASE, **change) for change in CHANGES),
    operands=example_operands,
    # A kernel has no gradient: those of the operation are matmuls, each by a kernel of its own.
    differentiable=lambda problem: False,
    space=Space(FEATURES, as_fields(MatmulProblem, dtypes=("x_dtype", "weight_dtype", "sum_dtype", "dtype"))),
    typical=TYPICAL,
)  # fmt: skip
