"""Megablox in Pallas's interpreter against core's reference, and what it refuses."""

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
from kanawa.kernels.grouped_matmul.problem import GroupedMatmulProblem
from kanawa.kernels.grouped_matmul.reference import ReferenceGroupedMatmul
from kanawa_backends_tpu.kernels.grouped_matmul.megablox import Megablox


class Interpreted(Megablox):
    """The same kernel without a TPU."""

    interpret: ClassVar[bool] = True


PLAIN = GroupedMatmulProblem(rows=256, inner=96, columns=160, groups=4, dtype="float32", rhs_dtype="float32")
SIZES = {
    "whole tiles": [128, 128, 0, 0],
    "ragged, empty in between": [3, 0, 250, 3],
    "rows past the end": [10, 90, 0, 29],
    "nothing at all": [0, 0, 0, 0],
}


Products = tuple[jax.Array, jax.Array, jax.Array]


@functools.partial(jax.jit, static_argnums=0)
def by_kernel(problem: GroupedMatmulProblem, operands: dict[str, Any], dout: jax.Array) -> Products:
    out, _ = Interpreted().forward(problem, operands)
    grads = Interpreted().backward(problem, operands, out, None, dout)
    return out, grads["lhs"], grads["rhs"]


@functools.partial(jax.jit, static_argnums=0)
def by_reference(problem: GroupedMatmulProblem, operands: dict[str, Any], dout: jax.Array) -> Products:
    def product(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return ReferenceGroupedMatmul().apply(problem, {**operands, "lhs": lhs, "rhs": rhs})

    out, vjp = jax.vjp(product, operands["lhs"], operands["rhs"])
    return out, *vjp(dout)


CASES = [*((case, "float32") for case in SIZES), ("rows past the end", "bfloat16")]


@pytest.mark.parametrize("case, dtype", CASES)
def test_against_the_reference(case, dtype):
    problem = dataclasses.replace(PLAIN, dtype=dtype, rhs_dtype=dtype)
    random = np.random.default_rng(0)
    shapes = {"lhs": (256, 96), "rhs": (4, 96, 160)}
    operands = {name: random.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    operands["group_sizes"] = np.array(SIZES[case], np.int32)
    dout = random.normal(size=(256, 160)).astype(dtype)
    assert Interpreted().supports(problem, None)
    tolerance = 1e-4 if dtype == "float32" else 2e-2
    everything = zip(by_kernel(problem, operands, dout), by_reference(problem, operands, dout), strict=True)
    for found, expected in everything:
        assert found.dtype == expected.dtype
        found, expected = np.asarray(found, np.float32), np.asarray(expected, np.float32)
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
