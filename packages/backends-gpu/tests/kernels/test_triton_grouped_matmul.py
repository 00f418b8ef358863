"""The Triton kernel in Pallas's interpreter against core's reference, its tiles, and what it refuses."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa.kernels.grouped_matmul import GroupedMatmulProblem, ReferenceGroupedMatmul
from kanawa.kernels.operation import Kernel
from kanawa.testing.kernel import KernelConformance
from kanawa_backends_gpu.kernels.grouped_matmul.triton import TritonGroupedMatmul, _height
from kanawa_backends_gpu.kernels.triton_tiles import RowTiles


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """Shapes that only rank promotion fits together are errors, as wherever a user's tests are strict."""
    with jax.numpy_rank_promotion("raise"):
        yield


class Interpreted(TritonGroupedMatmul):
    """The same kernel without a GPU."""

    interpret: ClassVar[bool] = True


PROBLEM = GroupedMatmulProblem(rows=300, inner=48, columns=32, groups=4, dtype="bfloat16", rhs_dtype="bfloat16")
SIZES = {
    "whole tiles": [128, 128, 0, 44],
    "ragged, empty in between": [3, 0, 290, 7],
    "rows past the end": [10, 90, 0, 29],
    "nothing at all": [0, 0, 0, 0],
}
Products = tuple[jax.Array, jax.Array, jax.Array]


@functools.partial(jax.jit, static_argnums=0)
def products(kernel: Any, operands: dict[str, Any], dout: jax.Array) -> Products:
    if kernel.autodiff:

        def product(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
            return kernel.apply(PROBLEM, {**operands, "lhs": lhs, "rhs": rhs})

        out, vjp = jax.vjp(product, operands["lhs"], operands["rhs"])
        return out, *vjp(dout)
    out, _ = kernel.forward(PROBLEM, operands)
    grads = kernel.backward(PROBLEM, operands, out, None, dout)
    return out, grads["lhs"], grads["rhs"]


KERNEL, REFERENCE = Interpreted(), ReferenceGroupedMatmul()


@pytest.mark.parametrize("case", SIZES)
def test_against_the_reference(case):
    random = np.random.default_rng(0)
    shapes = {"lhs": (300, 48), "rhs": (4, 48, 32)}
    operands = {name: random.normal(size=shape).astype(jnp.bfloat16) for name, shape in shapes.items()}
    operands["group_sizes"] = np.array(SIZES[case], np.int32)
    dout = random.normal(size=(300, 32)).astype(jnp.bfloat16)
    assert KERNEL.supports(PROBLEM, None)
    both = products(KERNEL, operands, dout), products(REFERENCE, operands, dout)
    for found, expected in zip(*both, strict=True):
        assert found.dtype == expected.dtype
        found, expected = np.asarray(found, np.float32), np.asarray(expected, np.float32)
        np.testing.assert_allclose(found, expected, rtol=2e-2, atol=5e-2)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=8), st.sampled_from([16, 128]))
def test_tiles_cover_each_row_once_and_with_its_own_group(sizes, height):
    rows = sum(sizes) + 5
    tiles = RowTiles.of_groups(jnp.array(sizes, jnp.int32), rows, height)
    found = [(row, int(g)) for g, a, b in zip(*tiles, strict=True) for row in range(int(a), int(b))]
    owners = [group for group, size in enumerate(sizes) for _ in range(size)]
    assert sorted(found) == list(enumerate(owners))
    assert all(int(b) - int(a) <= height for _, a, b in zip(*tiles, strict=True))


class TestConforms(KernelConformance):
    narrow: ClassVar[Any] = {"columns": (128, 160, 48), "inner": (128, 96, 64), "rows": (128, 200, 77, 8)}
    generated = 8

    def kernel(self) -> Kernel:
        return Interpreted()


@pytest.mark.parametrize(("rows", "groups", "height"), [(16384, 8, 128), (512, 128, 16), (300, 4, 128), (100, 2, 64)])
def test_tiles_are_no_taller_than_groups_usually_are(rows, groups, height):
    assert _height(dataclasses.replace(PROBLEM, rows=rows, groups=groups)) == height


REFUSALS = {
    "dtype float64": {"dtype": "float64", "rhs_dtype": "float64"},
    "needs one dtype": {"dtype": "float32"},
    "widths [40]": {"inner": 40},
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_say_why(reason):
    verdict = KERNEL.supports(dataclasses.replace(PROBLEM, **REFUSALS[reason]), None)
    assert not verdict
    assert reason in verdict.reason


def test_short_tiles_and_small_groups_cost_more_than_their_matmuls():
    """Ends of a tile weigh by the inner width; a group ends half a tile too late."""
    wide = dataclasses.replace(PROBLEM, rows=2**18, inner=2**14, columns=2**14, groups=1)
    cost = TritonGroupedMatmul().computed
    assert cost(wide, None) == pytest.approx(1.0, abs=0.05)
    assert cost(dataclasses.replace(wide, inner=768), None) > 1.3
    assert cost(dataclasses.replace(wide, groups=2**12), None) > 1.9
