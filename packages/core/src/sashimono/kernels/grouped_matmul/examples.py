"""Grouped products that every kernel is asked, and random operands for any problem."""

import dataclasses

import jax
import jax.numpy as jnp

from sashimono.kernels.compare import Examples
from sashimono.kernels.grouped_matmul.problem import GroupedMatmulProblem
from sashimono.kernels.grouped_matmul.reference import ReferenceGroupedMatmul

BASE = GroupedMatmulProblem(
    rows=256, inner=128, columns=128, groups=4, dtype="float32", rhs_dtype="float32"
)

CHANGES: tuple[dict[str, int | str], ...] = (
    {},
    {"dtype": "bfloat16", "rhs_dtype": "bfloat16"},
    {"groups": 1},
    {"groups": 16},
    {"inner": 64, "columns": 256},
    {"rows": 200},
)


def example_operands(problem: GroupedMatmulProblem, key: jax.Array) -> dict[str, jax.Array]:
    """Returns random operands; some groups may be empty, and some rows belong to none."""
    p = problem
    keys = jax.random.split(key, 3)
    edges = jax.random.randint(keys[2], (p.groups,), 0, p.rows + 1, jnp.int32)
    edges = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.sort(edges)])
    return {
        "lhs": jax.random.normal(keys[0], (p.rows, p.inner)).astype(p.dtype),
        "rhs": jax.random.normal(keys[1], (p.groups, p.inner, p.columns)).astype(p.rhs_dtype),
        "group_sizes": jnp.diff(edges),
    }


EXAMPLES = Examples(
    reference=ReferenceGroupedMatmul(),
    problems=tuple(dataclasses.replace(BASE, **change) for change in CHANGES),
    operands=example_operands,
)
