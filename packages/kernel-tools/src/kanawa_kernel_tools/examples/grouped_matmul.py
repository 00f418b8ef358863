"""Grouped products that every kernel is asked, and random operands for any problem."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from kanawa.kernels.grouped_matmul import GroupedMatmulProblem, ReferenceGroupedMatmul
from kanawa.testing.compare import Examples

from kanawa_kernel_tools.examples.space import Space, as_fields

BASE = GroupedMatmulProblem(rows=256, inner=128, columns=128, groups=4, dtype="float32", rhs_dtype="float32")

#: Eight experts of an 8x7B mixture on one chip.
TYPICAL = GroupedMatmulProblem(rows=8192, inner=4096, columns=14336, groups=8, dtype="bfloat16", rhs_dtype="bfloat16")

CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"dtype": "bfloat16", "rhs_dtype": "bfloat16", "groups": 16},
    {"rows": 200, "inner": 64, "columns": 256},
)

FEATURES: dict[str, tuple[Any, ...]] = {
    "rows": (256, 512, 128, 384, 200, 77, 8),
    "inner": (128, 256, 64, 384, 96, 40),
    "columns": (128, 256, 64, 512, 160, 56),
    "groups": (4, 1, 2, 16, 7),
    # Of rows and matrices.
    "dtypes": (("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16")),
}


def example_operands(problem: GroupedMatmulProblem, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns random operands; some groups may be empty, and some rows belong to none."""
    p = problem
    edges = np.sort(rng.integers(0, p.rows + 1, p.groups))
    # A router that sends nothing here, or all to one expert, is common in the first steps.
    if rng.random() < 0.2:
        edges = np.where(np.arange(p.groups) < rng.integers(0, p.groups + 1), 0, rng.choice([0, p.rows]))
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
    space=Space(FEATURES, as_fields(GroupedMatmulProblem, dtypes=("dtype", "rhs_dtype"))),
    typical=TYPICAL,
)
