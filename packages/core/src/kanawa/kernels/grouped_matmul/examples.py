"""Grouped products that every kernel is asked, and random operands for any problem."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from kanawa.kernels.compare import Examples
from kanawa.kernels.grouped_matmul.problem import GroupedMatmulProblem
from kanawa.kernels.grouped_matmul.reference import ReferenceGroupedMatmul

BASE = GroupedMatmulProblem(rows=256, inner=128, columns=128, groups=4, dtype="float32", rhs_dtype="float32")

CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"dtype": "bfloat16", "rhs_dtype": "bfloat16"},
    {"groups": 1},
    {"groups": 16},
    {"inner": 64, "columns": 256},
    {"rows": 200},
)


def example_operands(problem: GroupedMatmulProblem, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns random operands; some groups may be empty, and some rows belong to none."""
    p = problem
    edges = np.sort(rng.integers(0, p.rows + 1, p.groups))
    rhs = rng.standard_normal((p.groups, p.inner, p.columns))
    return {
        "lhs": rng.standard_normal((p.rows, p.inner)).astype(jnp.dtype(p.dtype)),
        "rhs": rhs.astype(jnp.dtype(p.rhs_dtype)),
        "group_sizes": np.diff(edges, prepend=0).astype(np.int32),
    }


EXAMPLES = Examples(
    reference=ReferenceGroupedMatmul(),
    problems=tuple(dataclasses.replace(BASE, **change) for change in CHANGES),
    operands=example_operands,
)
