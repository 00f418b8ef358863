"""Norms that every kernel is asked, and random operands for any problem."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from kanawa.kernels.rms_norm import ReferenceRMSNorm, RMSNormProblem
from kanawa.testing.compare import Examples

from kanawa_kernel_tools.examples.space import Space, as_fields

BASE = RMSNormProblem(rows=256, width=128, dtype="float32", eps=1e-6)

#: One norm of an 8B Llama on one chip.
TYPICAL = RMSNormProblem(rows=8192, width=4096, dtype="bfloat16", eps=1e-5)

CHANGES: tuple[dict[str, Any], ...] = ({}, {"dtype": "bfloat16", "rows": 200}, {"width": 40, "rows": 7, "eps": 0.1})

FEATURES: dict[str, tuple[Any, ...]] = {
    "rows": (256, 128, 512, 200, 77, 8, 1),
    "width": (128, 256, 512, 64, 96, 40, 1),
    "dtype": ("float32", "bfloat16", "float16"),
    "eps": (1e-6, 1e-5, 0.1),
}


def example_operands(problem: RMSNormProblem, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns random operands; the first row is zeros, whose root mean square is eps' own."""
    x = rng.standard_normal((problem.rows, problem.width))
    x[: problem.rows > 1] = 0.0
    return {
        "x": x.astype(jnp.dtype(problem.dtype)),
        "scale": (1 + 0.3 * rng.standard_normal(problem.width)).astype(np.float32),
    }


def terms(
    problem: RMSNormProblem, operands: Mapping[str, np.ndarray], cotangents: list[np.ndarray]
) -> dict[str, float]:
    """Returns the magnitude of the two terms whose difference is the gradient of x; at width 1 only eps is left."""
    x = operands["x"]
    inverse = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + problem.eps)
    return {"dx": float(np.max(np.abs(cotangents[0] * operands["scale"] * inverse)))}


EXAMPLES = Examples(
    reference=ReferenceRMSNorm(),
    problems=tuple(dataclasses.replace(BASE, **change) for change in CHANGES),
    operands=example_operands,
    space=Space(FEATURES, as_fields(RMSNormProblem)),
    typical=TYPICAL,
    terms=terms,
)
