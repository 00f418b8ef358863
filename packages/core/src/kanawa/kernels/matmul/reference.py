"""matmul.any.xla: one dot_general, which every platform compiles to its own matmul."""

from typing import Any, ClassVar

import jax

from kanawa.kernels.matmul.problem import MatmulProblem
from kanawa.kernels.operation import Operands, UniversalKernel


class ReferenceMatmul(UniversalKernel):
    """`jax.lax.dot_general`. Supports every problem; the compiler splits it over a mesh."""

    name: ClassVar[str] = "matmul.any.xla"
    operation: ClassVar[str] = "matmul"

    def forward(self, problem: MatmulProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (out [rows, outputs], None)."""
        out = jax.lax.dot_general(
            operands["x"],
            operands["weight"],
            (problem.contraction, ((), ())),
            precision=dot_precision(problem.precision),
            preferred_element_type=problem.sum_dtype,
        )
        return out.astype(problem.dtype), None


def dot_precision(name: str) -> Any:
    """Returns what `dot_general` takes for a problem's `precision`."""
    return jax.lax.Precision.HIGHEST if name == "highest" else None
