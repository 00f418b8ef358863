"""Quantised products that every kernel is asked, and random operands for any problem."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from kanawa.kernels.number_formats import FORMATS, format_named, quantize_lhs, quantize_rhs
from kanawa.kernels.quantized_matmul import QuantizedMatmulProblem, ReferenceQuantizedMatmul
from kanawa.testing.compare import Examples

from kanawa_kernel_tools.examples.space import Space

BASE = QuantizedMatmulProblem(
    lhs_shape=(2, 64, 128),
    rhs_shape=(128, 256),
    num_contracted=1,
    groups=1,
    lhs_format="int8",
    rhs_format="int8",
    dtype="float32",
)

#: A feed-forward projection of an 8B model.
TYPICAL = dataclasses.replace(BASE, lhs_shape=(1, 4096, 4096), rhs_shape=(4096, 14336), dtype="bfloat16")

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

_EIGHT_BITS = ("int8", "float8_e4m3fn", "float8_e5m2")

FEATURES: dict[str, tuple[Any, ...]] = {
    # Of lhs and rhs: both quantised, or the weight alone.
    "formats": (
        ("int8", "int8"),
        ("bfloat16", "int8"),
        ("float8_e4m3fn", "float8_e4m3fn"),
        ("float8_e5m2", "float8_e4m3fn"),
        ("float8_e4m3fn", "float8_e5m2"),
        ("float32", "int8"),
        ("bfloat16", "float8_e4m3fn"),
        ("bfloat16", "int4"),
        ("bfloat16", "nf4"),
        ("float32", "int4"),
    ),
    "dtype": ("bfloat16", "float32"),
    "rows": ((128,), (2, 64), (256,), (1,), (7,), (2, 3, 8)),
    "contracted": ((256,), (128,), (4, 64), (512,), (96,)),
    "columns": ((256,), (128,), (2, 64), (384,), (100,)),
    "groups": (1, 2, 4),
}


def build(choice: Mapping[str, Any]) -> QuantizedMatmulProblem | None:
    """Returns the problem of a choice of features; None where its values can't meet."""
    c = choice
    lhs, rhs = c["formats"]
    # Scales along the contraction can't leave the sum, which a quantised lhs takes in integers or eight bits.
    if c["groups"] > 1 and lhs in _EIGHT_BITS or c["contracted"][0] % c["groups"]:
        return None
    return QuantizedMatmulProblem(
        lhs_shape=(*c["rows"], *c["contracted"]),
        rhs_shape=(*c["contracted"], *c["columns"]),
        num_contracted=len(c["contracted"]),
        groups=c["groups"],
        lhs_format=lhs,
        rhs_format=rhs,
        dtype=c["dtype"],
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
    typical=TYPICAL,
    differentiable=lambda problem: problem.lhs_format not in FORMATS,
    space=Space(FEATURES, build),
)
