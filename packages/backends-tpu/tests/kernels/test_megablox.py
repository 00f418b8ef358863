"""Megablox in Pallas's interpreter against core's reference, and what it refuses."""

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
from kanawa.kernels.grouped_matmul import GroupedMatmulProblem, ReferenceGroupedMatmul
from kanawa.testing.kernel import KernelConformance
from kanawa_backends_tpu.kernels.grouped_matmul.megablox import Megablox
from kanawa_backends_tpu.kernels.grouped_matmul.tiles import MatmulShape, tile_sizes


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


CASES = [("whole tiles", "float32"), ("rows past the end", "bfloat16"), ("nothing at all", "float32")]


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
    for ours, expected in everything:
        assert ours.dtype == expected.dtype
        ours, expected = np.asarray(ours, np.float32), np.asarray(expected, np.float32)
        np.testing.assert_allclose(ours, expected, rtol=tolerance, atol=tolerance * 30)


class TestMegablox(KernelConformance):
    """Any number of rows, and widths that are no whole tiles."""

    generated: ClassVar[int] = 4
    generated_nightly: ClassVar[int] = 40
    fewest_accepted: ClassVar[int] = 4

    def kernel(self) -> Megablox:
        return Interpreted()

    def problems(self) -> tuple[GroupedMatmulProblem, ...]:
        return (dataclasses.replace(PLAIN, rows=201, inner=40, columns=56),)


MOE = MatmulShape(rows=65536, inner=2048, columns=768, groups=128, itemsize=2)
TILES = {
    "a group is about two tiles of rows": (MOE, {0: range(128, 513)}),
    "a token each": (dataclasses.replace(MOE, rows=64), {0: range(16, 33)}),
    "a width that 1,024 doesn't divide": (dataclasses.replace(MOE, columns=1408, groups=64), {2: (1408, 704)}),
    "large matrices": (MatmulShape(32768, 4096, 14336, 8, 2), {0: range(256, 1025), 2: range(512, 2049)}),
    "less than a tile": (MatmulShape(1, 5, 7, 3, 4), {0: (16,), 1: (5,), 2: (7,)}),
}


@pytest.mark.parametrize("case", TILES)
@pytest.mark.parametrize("summed_rows", [False, True])
def test_tiles_fit_shapes_and_the_chip(case, summed_rows):
    product, expected = TILES[case]
    sizes = tile_sizes(dataclasses.replace(product, summed_rows=summed_rows), None)
    widths = (product.inner, product.columns)
    assert all(size % 128 == 0 or size == width for size, width in zip(sizes[1:], widths, strict=True))
    if not summed_rows:
        assert all(sizes[axis] in allowed for axis, allowed in expected.items())


REFUSALS = {
    "dtypes ['float16']": {"dtype": "float16", "rhs_dtype": "float16"},
    "no rows": {"rows": 0},
    "empty matrices": {"columns": 0},
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_say_why(reason):
    verdict = Megablox().supports(dataclasses.replace(PLAIN, **REFUSALS[reason]), None)
    assert not verdict
    assert reason in verdict.reason


def test_whole_tiles_are_computed_where_groups_end_inside_them():
    """Many groups of few rows cost tiles of their own; one group of whole tiles costs what its matmul does."""
    sizes = {"rows": 8192, "inner": 1024, "columns": 1024}
    many = GroupedMatmulProblem(**sizes, groups=128, dtype="bfloat16", rhs_dtype="bfloat16")
    one = dataclasses.replace(many, groups=1)
    assert Megablox().computed(one, None) == pytest.approx(1.0)
    rows, *_ = tile_sizes(MatmulShape(8192, 1024, 1024, 128, 2), None)
    assert Megablox().computed(many, None) == pytest.approx((8192 // rows + 127) * rows / 8192)
    assert Megablox().computed(dataclasses.replace(one, columns=2880), None) > 1.0
