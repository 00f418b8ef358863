"""Megablox in Pallas's interpreter against core's reference, and what it refuses."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sashimono.kernels.grouped_matmul.problem import GroupedMatmulProblem
from sashimono.kernels.grouped_matmul.reference import ReferenceGroupedMatmul

from sashimono_backends_tpu.kernels.grouped_matmul.megablox import Megablox


class Interpreted(Megablox):
    """The same kernel without a TPU."""

    interpret: ClassVar[bool] = True


PLAIN = GroupedMatmulProblem(
    rows=256, inner=96, columns=160, groups=4, dtype="float32", rhs_dtype="float32"
)
SIZES = {
    "whole tiles": [128, 128, 0, 0],
    "ragged, empty in between": [3, 0, 250, 3],
    "rows past the end": [10, 90, 0, 29],
    "nothing at all": [0, 0, 0, 0],
}


@pytest.mark.parametrize("case", SIZES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_against_the_reference(case, dtype):
    problem = dataclasses.replace(PLAIN, dtype=dtype, rhs_dtype=dtype)
    random = np.random.default_rng(0)
    lhs = jnp.asarray(random.normal(size=(256, 96)), dtype)
    rhs = jnp.asarray(random.normal(size=(4, 96, 160)), dtype)
    dout = jnp.asarray(random.normal(size=(256, 160)), dtype)
    sizes = jnp.asarray(SIZES[case])
    kernel, reference = Interpreted(), ReferenceGroupedMatmul()
    assert kernel.supports(problem, None)

    def product(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return reference.apply(problem, {"lhs": lhs, "rhs": rhs, "group_sizes": sizes})

    wanted, vjp = jax.vjp(product, lhs, rhs)
    dlhs, drhs = vjp(dout)
    operands: dict[str, Any] = {"lhs": lhs, "rhs": rhs, "group_sizes": sizes}
    out, _ = kernel.forward(problem, operands)
    grads = kernel.backward(problem, operands, out, None, dout)
    for found, expected in ((out, wanted), (grads["lhs"], dlhs), (grads["rhs"], drhs)):
        assert found.dtype == expected.dtype
        found, expected = np.asarray(found, np.float32), np.asarray(expected, np.float32)
        tolerance = 1e-4 if dtype == "float32" else 2e-2
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * 30)


REFUSALS = {
    "dtypes ['float16']": {"dtype": "float16", "rhs_dtype": "float16"},
    "100 rows": {"rows": 100},
    "no rows": {"rows": 0},
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_say_why(reason):
    verdict = Megablox().supports(dataclasses.replace(PLAIN, **REFUSALS[reason]), None)
    assert not verdict
    assert reason in verdict.reason
