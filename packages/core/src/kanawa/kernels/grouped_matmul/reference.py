"""grouped_matmul.any.reference: XLA's ragged dot, which every platform implements."""

from typing import ClassVar

import jax

from kanawa.kernels.accumulate import wide
from kanawa.kernels.grouped_matmul.problem import GroupedMatmulProblem
from kanawa.kernels.operation import Operands, UniversalKernel


class ReferenceGroupedMatmul(UniversalKernel):
    """`jax.lax.ragged_dot` with fp32 accumulation. Supports every problem."""

    name: ClassVar[str] = "grouped_matmul.any.reference"
    operation: ClassVar[str] = "grouped_matmul"
    autodiff: ClassVar[bool] = True

    def forward(self, problem: GroupedMatmulProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (out [rows, columns] like lhs, None). Rows past the last group are zero."""
        out = jax.lax.ragged_dot(
            operands["lhs"],
            operands["rhs"],
            operands["group_sizes"],
            preferred_element_type=wide(operands["lhs"].dtype),
        )
        return out.astype(operands["lhs"].dtype), None
