"""grouped_matmul.gpu.triton: a grouped matrix product for NVIDIA GPUs and its two gradients, in Pallas on Triton.

XLA writes `ragged_dot` on GPUs as one dense product per group over all rows. Here a program takes one tile of rows of
one group and one tile of columns; the gradient of the matrices walks a group's rows. Sums are fp32. Compiled for A100,
H100 and B200, run in Pallas's interpreter, never on a GPU; tile sizes are common ones, not tuned. JAX 0.11 warns that
Pallas will give up Triton for Mosaic GPU; this file moves with it.
"""

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from kanawa.kernels.grouped_matmul.problem import GroupedMatmulProblem
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.verdict import Verdict, first_refusal

from kanawa_backends_gpu.kernels.row_tiles import RowTiles

if TYPE_CHECKING:
    from kanawa.plugins import DeviceSpec

_ROWS = 128
_NARROWEST = 16
_WIDEST = 128
_DEEPEST = 64
_PARAMS = plgpu.CompilerParams(num_warps=8, num_stages=3)


class TritonGroupedMatmul(Kernel):
    """bf16 with fp32 sums, any group sizes, widths in multiples of 16."""

    name: ClassVar[str] = "grouped_matmul.gpu.triton"
    operation: ClassVar[str] = "grouped_matmul"
    platforms: ClassVar[tuple[str, ...]] = ("gpu",)
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    compiled_calls: ClassVar[tuple[tuple[str, float], ...]] = ((r"grouped_matmul", 1),)
    #: Pallas's interpreter instead of a GPU: for tests.
    interpret: ClassVar[bool] = False

    def supports(self, problem: GroupedMatmulProblem, device: "DeviceSpec | None") -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        dtypes = sorted({problem.dtype, problem.rhs_dtype})
        narrow = [n for n in (problem.inner, problem.columns) if n % _NARROWEST]
        return first_refusal(
            (dtypes != ["bfloat16"], f"dtypes {dtypes}; needs bfloat16"),
            (bool(narrow), f"widths {narrow} aren't multiples of {_NARROWEST}"),
            (problem.rows < _ROWS, f"{problem.rows} rows are fewer than a tile's {_ROWS}"),
        )

    def forward(self, problem: GroupedMatmulProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (out [rows, columns] in lhs's dtype, None). Rows past the last group are zero."""
        return self._product(operands["lhs"], operands["rhs"], operands["group_sizes"]), None

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
            "lhs": self._product(cotangents, rhs.swapaxes(1, 2), sizes),
            "rhs": self._group_products(lhs, cotangents, sizes).astype(rhs.dtype),
        }

    def _product(self, lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
        rows, inner = lhs.shape
        columns = rhs.shape[2]
        tiles = RowTiles.of(sizes.astype(jnp.int32), rows, _ROWS)
        width, depth = _tile(columns, _WIDEST), _tile(inner, _DEEPEST)
        out = pl.pallas_call(
            functools.partial(_rows_by_matrix, width=width, depth=depth),
            out_shape=jax.ShapeDtypeStruct((rows, columns), lhs.dtype),
            grid=(tiles.group.size, columns // width),
            compiler_params=_PARAMS,
            interpret=self.interpret,
            name="grouped_matmul",
        )(*tiles, lhs, rhs)
        # Rows past the last group are never written.
        return jnp.where(jnp.arange(rows)[:, None] < jnp.sum(sizes), out, jnp.zeros((), out.dtype))

    def _group_products(self, lhs: jax.Array, dout: jax.Array, sizes: jax.Array) -> jax.Array:
        inner, columns = lhs.shape[1], dout.shape[1]
        end = jnp.cumsum(sizes.astype(jnp.int32))
        height, width = _tile(inner, _WIDEST), _tile(columns, _WIDEST)
        return pl.pallas_call(
            functools.partial(_rows_by_rows, height=height, width=width),
            out_shape=jax.ShapeDtypeStruct((sizes.shape[0], inner, columns), jnp.float32),
            grid=(sizes.shape[0], inner // height, columns // width),
            compiler_params=_PARAMS,
            interpret=self.interpret,
            name="grouped_matmul_of_matrices",
        )(end - sizes.astype(jnp.int32), end, lhs, dout)


def _tile(width: int, largest: int) -> int:
    """Returns the largest power of two up to `largest` that divides `width`."""
    return min(largest, width & -width)


def _seen(first: Any, end: Any, rows: int, height: int) -> tuple[Any, jax.Array]:
    """Returns where to load `height` rows from, within the array, and which of them lie in [first, end)."""
    start = jnp.minimum(first, rows - height)
    row = start + jnp.arange(height)
    return start, ((row >= first) & (row < end))[:, None]


def _rows_by_matrix(group: Any, first: Any, end: Any, lhs: Any, rhs: Any, out: Any, *, width: int, depth: int) -> None:
    tile, columns = pl.program_id(0), pl.ds(pl.program_id(1) * width, width)
    start, seen = _seen(first[tile], end[tile], lhs.shape[0], _ROWS)
    rows, matrix = pl.ds(start, _ROWS), group[tile]

    @pl.when(first[tile] < end[tile])
    def _() -> None:
        def add(step: jax.Array, total: jax.Array) -> jax.Array:
            inner = pl.ds(step * depth, depth)
            a = plgpu.load(lhs.at[rows, inner], mask=seen, other=0.0)
            return total + plgpu.dot(a, plgpu.load(rhs.at[matrix, inner, columns]))

        total = jax.lax.fori_loop(0, lhs.shape[1] // depth, add, jnp.zeros((_ROWS, width), jnp.float32))
        plgpu.store(out.at[rows, columns], total.astype(out.dtype), mask=seen)


def _rows_by_rows(first: Any, end: Any, lhs: Any, dout: Any, out: Any, *, height: int, width: int) -> None:
    group = pl.program_id(0)
    inner, columns = pl.ds(pl.program_id(1) * height, height), pl.ds(pl.program_id(2) * width, width)
    begin, stop = first[group], end[group]

    def add(step: jax.Array, total: jax.Array) -> jax.Array:
        at = begin + step * _DEEPEST
        start, seen = _seen(at, jnp.minimum(stop, at + _DEEPEST), lhs.shape[0], _DEEPEST)
        a = plgpu.load(lhs.at[pl.ds(start, _DEEPEST), inner], mask=seen, other=0.0)
        b = plgpu.load(dout.at[pl.ds(start, _DEEPEST), columns], mask=seen, other=0.0)
        return total + plgpu.dot(a, b, trans_a=True)

    steps = (stop - begin + _DEEPEST - 1) // _DEEPEST
    total = jax.lax.fori_loop(0, steps, add, jnp.zeros((height, width), jnp.float32))
    out[group, inner, columns] = total
