"""grouped_matmul.gpu.triton: a grouped matrix product for NVIDIA GPUs and its two gradients, in Pallas on Triton.

XLA writes `ragged_dot` on GPUs as one dense product per group over all rows. Here a program takes one tile of rows of
one group and one tile of columns; the gradient of the matrices walks a group's rows. Sums are fp32. Compiled for A100,
H100 and B200, run in Pallas's interpreter, never on a GPU; tile sizes are common ones, not tuned. JAX 0.11 warns that
Pallas will give up Triton for Mosaic GPU; this file moves with it.
"""

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from kanawa.kernels.grouped_matmul import GroupedMatmulProblem
from kanawa.kernels.operation import Kernel, Operands, Tuning
from kanawa.kernels.verdict import Verdict, first_refusal
from kanawa.plugins import DeviceSpec

from kanawa_backends_gpu.kernels.triton_tiles import NARROWEST, RowTiles, dividing, dot

_DTYPES = ("bfloat16", "float16", "float32")
_TALLEST = 128
#: Steps of the inner width, in elements, in which a program fills its pipeline and writes its tile: some 5 us, of which
#: a tile's 64 KiB at a multiprocessor's share of memory bandwidth take half.
_ENDS = 768


class TritonGroupedMatmul(Kernel):
    """fp32 sums, any number of rows and group sizes, widths in multiples of 16."""

    name: ClassVar[str] = "grouped_matmul.gpu.triton"
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    compiled_calls: ClassVar[tuple[tuple[str, float], ...]] = ((r"grouped_matmul", 1),)
    #: Pallas's interpreter instead of a GPU: for tests.
    interpret: ClassVar[bool] = False

    def supports(self, problem: GroupedMatmulProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        dtypes = sorted({problem.dtype, problem.rhs_dtype})
        narrow = [n for n in (problem.inner, problem.columns) if n % NARROWEST]
        return first_refusal(
            (len(dtypes) > 1, f"rows are {problem.dtype} and matrices {problem.rhs_dtype}; needs one dtype"),
            (dtypes[0] not in _DTYPES, f"dtype {dtypes[0]}; needs {', '.join(_DTYPES)}"),
            (bool(narrow), f"widths {narrow} aren't multiples of {NARROWEST}"),
        )

    def tunings(self, problem: GroupedMatmulProblem, device: DeviceSpec | None) -> tuple[Tuning, ...]:
        """Returns other tiles: `height` rows by `width` columns in steps of `depth`, and `stages` of them in flight."""
        own = _height(problem)
        heights = [h for h in (own // 2, own * 2) if NARROWEST <= h <= _TALLEST]
        return (
            *((("height", h),) for h in heights),
            (("width", 128),),
            (("depth", 32), ("stages", 4)),
            (("depth", 32),),
            (("stages", 4),),
        )

    def computed(self, problem: GroupedMatmulProblem, device: DeviceSpec | None) -> float:
        """Returns the time of its tiles over that of their matmuls, the mean of the product and its two gradients.

        A program has one tile: nothing runs beside its beginning and its end. A group ends inside a tile of rows.
        """
        del device
        p = problem
        ends = _ENDS * (1 / p.inner + 1 / p.columns + p.groups / max(1, p.rows)) / 3
        return (1 + ends) * (1 + p.groups * _height(p) / 2 / max(1, p.rows))

    def forward(self, problem: GroupedMatmulProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (out [rows, columns] in lhs's dtype, None). Rows past the last group are zero."""
        p = problem
        return self._product(p, operands["lhs"], operands["rhs"], operands["group_sizes"]), None

    def backward(
        self,
        problem: GroupedMatmulProblem,
        operands: Operands,
        out: jax.Array,
        residuals: None,
        cotangents: jax.Array,
    ) -> dict[str, jax.Array]:
        """Returns cotangents of lhs and rhs, in their dtypes."""
        lhs, rhs, sizes = operands["lhs"], operands["rhs"], operands["group_sizes"]
        return {
            "lhs": self._product(problem, cotangents, rhs, sizes, transposed=True),
            "rhs": self._group_products(lhs, cotangents, sizes),
        }

    def _product(
        self,
        problem: GroupedMatmulProblem,
        lhs: jax.Array,
        rhs: jax.Array,
        sizes: jax.Array,
        *,
        transposed: bool = False,
    ) -> jax.Array:
        """Returns rows times their group's matrix, or times its transpose, which is read as it lies."""
        rows, inner = lhs.shape
        columns = rhs.shape[1 if transposed else 2]
        # A tile is read whole, so there must be that many rows.
        lhs = jnp.pad(lhs, ((0, max(0, NARROWEST - rows)), (0, 0)))
        height = min(self.setting("height", _height(problem)), 1 << (lhs.shape[0].bit_length() - 1))
        width, depth = dividing(columns, self.setting("width", _width(lhs.dtype))), self._depth(inner, lhs.dtype)
        tiles = RowTiles.of_groups(sizes.astype(jnp.int32), rows, height)
        out = pl.pallas_call(
            functools.partial(_rows_by_matrix, height=height, width=width, depth=depth, transposed=transposed),
            out_shape=jax.ShapeDtypeStruct((lhs.shape[0], columns), lhs.dtype),
            grid=(tiles.group.size, columns // width),
            compiler_params=self._params(height * width),
            interpret=self.interpret,
            name="grouped_matmul",
        )(*tiles, lhs, rhs)[:rows]
        # Rows past the last group are never written.
        return jnp.where(jnp.arange(rows)[:, None] < jnp.sum(sizes), out, jnp.zeros((), out.dtype))

    def _group_products(self, lhs: jax.Array, dout: jax.Array, sizes: jax.Array) -> jax.Array:
        inner, columns = lhs.shape[1], dout.shape[1]
        end = jnp.cumsum(sizes.astype(jnp.int32))
        height = dividing(inner, _TALLEST)
        width = dividing(columns, self.setting("width", _width(lhs.dtype)))
        # Rows are what is summed over here: as many as there are at most.
        depth = min(self.setting("depth", _deepest(lhs.dtype)), 1 << max(4, lhs.shape[0].bit_length() - 1))
        short = max(0, depth - lhs.shape[0])
        lhs, dout = (jnp.pad(x, ((0, short), (0, 0))) for x in (lhs, dout))
        products: jax.Array = pl.pallas_call(
            functools.partial(_rows_by_rows, height=height, width=width, depth=depth),
            out_shape=jax.ShapeDtypeStruct((sizes.shape[0], inner, columns), lhs.dtype),
            grid=(sizes.shape[0], inner // height, columns // width),
            compiler_params=self._params(height * width),
            interpret=self.interpret,
            name="grouped_matmul_of_matrices",
        )(end - sizes.astype(jnp.int32), end, lhs, dout)
        return products

    def _depth(self, inner: int, dtype: jnp.dtype) -> int:
        return dividing(inner, self.setting("depth", _deepest(dtype)))

    def _params(self, elements: int) -> plgpu.CompilerParams:
        # A thread keeps its part of the tile's fp32 sums in registers, of which it has 255: at most 128 of them.
        warps = 8 if elements >= 128 * 128 else 4
        return plgpu.CompilerParams(num_warps=warps, num_stages=self.setting("stages", 3))


def _height(problem: GroupedMatmulProblem) -> int:
    """Returns the rows of a tile: no more than a group has on average, or most of the tile would be empty."""
    usual = -(-problem.rows // problem.groups)
    return max(NARROWEST, min(_TALLEST, 1 << max(0, usual - 1).bit_length()))


def _width(dtype: jnp.dtype) -> int:
    return 128 if dtype.itemsize > 2 else 256


def _deepest(dtype: jnp.dtype) -> int:
    # Three stages of 128 x 64 and 64 x 256 two-byte numbers take 144 KiB: an A100 has 163 for a block, others 227.
    return 32 if dtype.itemsize > 2 else 64


def _seen(first: Any, end: Any, rows: int, height: int) -> tuple[Any, jax.Array]:
    """Returns where to load `height` rows from, within the array, and which of them lie in [first, end)."""
    start = jnp.minimum(first, rows - height)
    row = start + jnp.arange(height)
    return start, ((row >= first) & (row < end))[:, None]


def _rows_by_matrix(
    group: Any, first: Any, end: Any, lhs: Any, rhs: Any, out: Any, *, height: int, width: int, depth: int,
    transposed: bool,
) -> None:  # fmt: skip
    tile, columns = pl.program_id(0), pl.ds(pl.program_id(1) * width, width)
    start, seen = _seen(first[tile], end[tile], lhs.shape[0], height)
    rows, matrix = pl.ds(start, height), group[tile]

    @pl.when(first[tile] < end[tile])
    def _() -> None:
        def add(step: jax.Array, total: jax.Array) -> jax.Array:
            inner = pl.ds(step * depth, depth)
            a = plgpu.load(lhs.at[rows, inner], mask=seen, other=0.0)
            if transposed:
                return total + dot(a, plgpu.load(rhs.at[matrix, columns, inner]), trans_b=True)
            return total + dot(a, plgpu.load(rhs.at[matrix, inner, columns]))

        total = jax.lax.fori_loop(0, lhs.shape[1] // depth, add, jnp.zeros((height, width), jnp.float32))
        plgpu.store(out.at[rows, columns], total.astype(out.dtype), mask=seen)


def _rows_by_rows(first: Any, end: Any, lhs: Any, dout: Any, out: Any, *, height: int, width: int, depth: int) -> None:
    group = pl.program_id(0)
    inner, columns = pl.ds(pl.program_id(1) * height, height), pl.ds(pl.program_id(2) * width, width)
    begin, stop = first[group], end[group]

    def add(step: jax.Array, total: jax.Array) -> jax.Array:
        at = begin + step * depth
        start, seen = _seen(at, jnp.minimum(stop, at + depth), lhs.shape[0], depth)
        a = plgpu.load(lhs.at[pl.ds(start, depth), inner], mask=seen, other=0.0)
        b = plgpu.load(dout.at[pl.ds(start, depth), columns], mask=seen, other=0.0)
        return total + dot(a, b, trans_a=True)

    steps = (stop - begin + depth - 1) // depth
    total = jax.lax.fori_loop(0, steps, add, jnp.zeros((height, width), jnp.float32))
    out[group, inner, columns] = total.astype(out.dtype)
