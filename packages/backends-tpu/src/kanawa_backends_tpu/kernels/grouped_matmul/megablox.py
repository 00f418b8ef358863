"""grouped_matmul.tpu.megablox: JAX's grouped matrix product for TPUs and its two gradients.

Only tiles that hold rows are computed, so padding after the last group costs nothing.
"""

from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, tgmm
from kanawa.kernels.grouped_matmul.problem import GroupedMatmulProblem
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.verdict import Verdict, first_refusal

if TYPE_CHECKING:
    from kanawa.plugins import DeviceSpec

_LANES = 128
_LARGEST_ROW_TILE = 512
# Two copies of each input tile and the fp32 sums stay within 16 MiB, the default on-chip budget.
_LARGEST_TILE = {"bfloat16": 1024, "float32": 512}


class Megablox(Kernel):
    """bf16 or fp32 with fp32 sums, any group sizes, rows in multiples of 128."""

    name: ClassVar[str] = "grouped_matmul.tpu.megablox"
    operation: ClassVar[str] = "grouped_matmul"
    platforms: ClassVar[tuple[str, ...]] = ("tpu",)
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    compiled_calls: ClassVar[tuple[tuple[str, float], ...]] = ((r"gmm", 1),)
    #: Pallas's interpreter instead of a TPU: for tests.
    interpret: ClassVar[bool] = False

    def supports(self, problem: GroupedMatmulProblem, device: "DeviceSpec | None") -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        dtypes = {problem.dtype, problem.rhs_dtype}
        return first_refusal(
            (
                not dtypes <= set(_LARGEST_TILE),
                f"dtypes {sorted(dtypes)}; needs bfloat16 or float32",
            ),
            (problem.rows % _LANES != 0, f"{problem.rows} rows aren't a multiple of {_LANES}"),
            (problem.rows == 0, "no rows"),
        )

    def forward(self, problem: GroupedMatmulProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (out [rows, columns] in lhs's dtype, None). Rows past the last group are zero."""
        sizes = _sizes(operands)
        out = gmm(
            operands["lhs"],
            operands["rhs"],
            sizes,
            preferred_element_type=operands["lhs"].dtype,
            tiling=_tiling(problem, problem.inner, problem.columns),
            interpret=self.interpret,
        )
        return _without_tail(out, sizes), None

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
        arguments: dict[str, Any] = {"interpret": self.interpret}
        dlhs = gmm(
            cotangents,
            rhs,
            sizes,
            preferred_element_type=lhs.dtype,
            tiling=_tiling(problem, problem.columns, problem.inner),
            transpose_rhs=True,
            **arguments,
        )
        drhs = tgmm(
            lhs.swapaxes(0, 1),
            cotangents,
            sizes,
            preferred_element_type=rhs.dtype,
            tiling=_tiling(problem, problem.inner, problem.columns),
            num_actual_groups=problem.groups,
            **arguments,
        )
        return {"lhs": _without_tail(dlhs, sizes), "rhs": drhs}


def _sizes(operands: Operands) -> jax.Array:
    return operands["group_sizes"].astype(jnp.int32)


def _tiling(problem: GroupedMatmulProblem, inner: int, columns: int) -> tuple[int, int, int]:
    """Returns tile sizes of rows, the summed width and the output's width."""
    wide = "float32" if "float32" in (problem.dtype, problem.rhs_dtype) else problem.dtype
    largest = _LARGEST_TILE[wide]
    sizes = range(_LARGEST_ROW_TILE, 0, -_LANES)
    rows = next(size for size in sizes if problem.rows % size == 0)
    return rows, min(largest, _whole(inner)), min(largest, _whole(columns))


def _whole(width: int) -> int:
    return -(-width // _LANES) * _LANES


def _without_tail(x: jax.Array, sizes: jax.Array) -> jax.Array:
    """Zeroes the rows past the last group, which the kernel never writes."""
    row = jax.lax.broadcasted_iota(jnp.int32, (x.shape[0], 1), 0)
    return jnp.where(row < jnp.sum(sizes), x, jnp.zeros((), x.dtype))
