"""grouped_matmul.tpu.megablox: JAX's grouped matrix product for TPUs, and the gradient of its matrices.

Only tiles that hold rows are computed, so padding after the last group costs nothing.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm
from kanawa.kernels.grouped_matmul import GroupedMatmulProblem
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.platform import current_platform
from kanawa.kernels.verdict import Verdict, first_refusal
from kanawa.plugins import DeviceSpec
from kanawa.plugins.devices import device_spec_of_kind

from kanawa_backends_tpu.kernels.grouped_matmul.tiles import SUMMED_VMEM_BYTES, MatmulShape, tile_sizes, times_computed
from kanawa_backends_tpu.kernels.grouped_matmul.weight_gradient import weight_gradient

_DTYPES = frozenset({"bfloat16", "float32"})


class Megablox(Kernel):
    """bf16 or fp32 with fp32 sums, any group sizes, any number of rows: they are filled up to whole tiles."""

    name: ClassVar[str] = "grouped_matmul.tpu.megablox"
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    compiled_calls: ClassVar[tuple[tuple[str, float], ...]] = ((r"weight_gradient", 1), (r"gmm", 1))
    #: Pallas's interpreter instead of a TPU: for tests.
    interpret: ClassVar[bool] = False

    def supports(self, problem: GroupedMatmulProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        dtypes = {problem.dtype, problem.rhs_dtype}
        return first_refusal(
            (
                not dtypes <= _DTYPES,
                f"dtypes {sorted(dtypes)}; needs bfloat16 or float32",
            ),
            (problem.rows == 0, "no rows to multiply"),
            (problem.inner * problem.columns * problem.groups == 0, f"empty matrices: {problem.describe()}"),
        )

    def computed(self, problem: GroupedMatmulProblem, device: DeviceSpec | None) -> float:
        """Returns what whole tiles compute: groups end inside them, and widths aren't multiples of theirs."""
        return times_computed(_shape(problem, problem.inner, problem.columns), device)

    def forward(self, problem: GroupedMatmulProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (out [rows, columns] in lhs's dtype, None). Rows past the last group are zero."""
        sizes, lhs = _sizes(operands), operands["lhs"]
        tiling = self._tiles(problem, problem.inner, problem.columns)
        out = gmm(
            _filled(lhs, tiling[0]),
            operands["rhs"],
            sizes,
            preferred_element_type=lhs.dtype,
            tiling=tiling,
            interpret=self.interpret,
        )
        return _without_tail(out[: problem.rows], sizes), None

    def backward(
        self,
        problem: GroupedMatmulProblem,
        operands: Operands,
        out: jax.Array,
        residuals: None,
        cotangents: jax.Array,
    ) -> dict[str, jax.Array]:
        """Returns cotangents of lhs and rhs, in their dtypes."""
        lhs, rhs, sizes = operands["lhs"], operands["rhs"], _sizes(operands)
        tiling = self._tiles(problem, problem.columns, problem.inner)
        dlhs = gmm(
            _filled(cotangents, tiling[0]),
            rhs,
            sizes,
            preferred_element_type=lhs.dtype,
            tiling=tiling,
            transpose_rhs=True,
            interpret=self.interpret,
        )
        tiling = self._tiles(problem, problem.inner, problem.columns, summed_rows=True)
        drhs = weight_gradient(
            _filled(lhs, tiling[0]),
            _filled(cotangents, tiling[0]),
            sizes,
            tiles=tiling,
            dtype=rhs.dtype,
            vmem_bytes=SUMMED_VMEM_BYTES,
            interpret=self.interpret,
        )
        return {"lhs": _without_tail(dlhs[: problem.rows], sizes), "rhs": drhs}

    def _tiles(
        self, problem: GroupedMatmulProblem, inner: int, columns: int, *, summed_rows: bool = False
    ) -> tuple[int, int, int]:
        """Returns tile sizes of rows, the summed width and the output's width; of K and N where rows are summed."""
        _, kind = current_platform()
        device = None if kind is None else device_spec_of_kind(kind)
        return tile_sizes(_shape(problem, inner, columns, summed_rows=summed_rows), device)


def _shape(problem: GroupedMatmulProblem, inner: int, columns: int, *, summed_rows: bool = False) -> MatmulShape:
    itemsize = max(jnp.dtype(dtype).itemsize for dtype in (problem.dtype, problem.rhs_dtype))
    return MatmulShape(problem.rows, inner, columns, problem.groups, itemsize, summed_rows)


def _sizes(operands: Operands) -> jax.Array:
    sizes: jax.Array = operands["group_sizes"]
    return sizes.astype(jnp.int32)


def _filled(x: jax.Array, tile: int) -> jax.Array:
    """Returns rows up to a multiple of `tile`; those added belong to no group."""
    missing = -x.shape[0] % tile
    return jnp.pad(x, ((0, missing), (0, 0))) if missing else x


def _without_tail(x: jax.Array, sizes: jax.Array) -> jax.Array:
    """Zeroes the rows past the last group, which the kernel never writes."""
    row = jax.lax.broadcasted_iota(jnp.int32, (x.shape[0], 1), 0)
    return jnp.where(row < jnp.sum(sizes), x, jnp.zeros((), x.dtype))
