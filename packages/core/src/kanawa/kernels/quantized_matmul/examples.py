"""Quantised products that every kernel is asked, and random operands for any problem."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from kanawa.kernels.compare import Examples
from kanawa.kernels.quantized_matmul.formats import FORMATS, format_named
from kanawa.kernels.quantized_matmul.problem import QuantizedMatmulProblem
from kanawa.kernels.quantized_matmul.quantize import quantize_lhs, quantize_rhs
from kanawa.kernels.quantized_matmul.reference import ReferenceQuantizedMatmul

BASE = QuantizedMatmulProblem(
    lhs_shape=(2, 64, 128),
    rhs_shape=(128, 256),
    num_contracted=1,
    groups=1,
    lhs_format="int8",
    rhs_format="int8",
    dtype="float32",
)

CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"dtype": "bfloat16"},
    {"lhs_format": "float8_e4m3fn", "rhs_format": "float8_e4m3fn"},
    {"lhs_format": "float8_e5m2", "rhs_format": "float8_e4m3fn"},
    {"lhs_format": "float32"},
    {"lhs_format": "bfloat16", "dtype": "bfloat16"},
    {"lhs_format": "bfloat16", "dtype": "bfloat16", "rhs_format": "int4", "groups": 4},
    {"lhs_format": "bfloat16", "dtype": "bfloat16", "rhs_format": "nf4", "groups": 2},
    {"lhs_format": "float32", "lhs_shape": (4, 8, 16), "rhs_shape": (8, 16, 32), "num_contracted": 2},
)


def example_operands(problem: QuantizedMatmulProblem, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns operands quantised from random normals."""
    p = problem
    weight = jnp.asarray(rng.standard_normal(p.rhs_shape), jnp.float32)
    rhs, rhs_scale = quantize_rhs(weight, format_named(p.rhs_format), p.num_contracted, p.groups)
    lhs = jnp.asarray(rng.standard_normal(p.lhs_shape), jnp.float32)
    operands = {"rhs": rhs, "rhs_scale": rhs_scale}
    if p.lhs_format in FORMATS:
        operands["lhs"], operands["lhs_scale"] = quantize_lhs(lhs, format_named(p.lhs_format), p.num_contracted)
    else:
        operands["lhs"] = lhs.astype(p.lhs_format)
    return {name: np.asarray(x) for name, x in operands.items()}


EXAMPLES = Examples(
    reference=ReferenceQuantizedMatmul(),
    problems=tuple(dataclasses.replace(BASE, **change) for change in CHANGES),
    operands=example_operands,
    differentiable=lambda problem: problem.lhs_format not in FORMATS,
)
