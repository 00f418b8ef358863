"""matmul.cpu.few-rows: XLA's matmul in the forms that its CPU compiler computes fastest for the rows of serving."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels.matmul.problem import MatmulProblem
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.verdict import Verdict, first_refusal

#: Rows up to which the weight as left operand is fastest.
_FEW_ROWS = {"float32": 16, "bfloat16": 32}
_DTYPES = ("float32", "bfloat16")


class FewRowsMatmul(Kernel):
    """Sums are fp32. With few rows the weight is the left operand, which the compiler doesn't pack."""

    name: ClassVar[str] = "matmul.cpu.few-rows"
    priority: ClassVar[int] = 5
    local: ClassVar[bool] = True

    def supports(self, problem: MatmulProblem, device: Any) -> Verdict:
        """Returns support for serving's matmuls with weights laid out outputs first."""
        del device
        p = problem
        unknown = {p.x_dtype, p.weight_dtype, p.dtype}.difference(_DTYPES)
        return first_refusal(
            (p.purpose == "train", "it is for prefill and decoding"),
            (p.weight_layout != "outputs_first", "the weight is laid out inner first; it takes outputs first"),
            (p.x_layout != "rows_first", "x is laid out inner first; it takes rows first"),
            (bool(unknown), f"it doesn't take {', '.join(sorted(unknown))}"),
            (p.precision != "default", f"it doesn't offer {p.precision} precision"),
            (
                not _is_few(p) and not (p.x_dtype == p.weight_dtype == p.dtype == "bfloat16"),
                f"{p.rows} rows of {p.x_dtype} are over {_FEW_ROWS.get(p.x_dtype, 0)}",
            ),
        )

    def preferred(self, problem: MatmulProblem, device: Any) -> MatmulProblem:
        """Returns the problem with the weight's outputs first."""
        del device
        return dataclasses.replace(problem, weight_layout="outputs_first")

    def forward(self, problem: MatmulProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (out [rows, outputs], None)."""
        rows, weight = operands["x"], operands["weight"]
        count, out = problem.rows, jnp.dtype(problem.dtype)
        if not _is_few(problem):
            # With sums in bfloat16 XLA converts both operands to float32 first; with these it uses bfloat16 units.
            wide = jax.lax.dot_general(rows, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
            return wide.astype(out), None
        if count == 1 and rows.dtype == jnp.bfloat16:
            # XLA computes one row as a matrix times a vector, which takes ten times as long as two rows.
            rows = jnp.pad(rows, ((0, 1), (0, 0)))
        result = jax.lax.dot_general(weight, rows, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        # Without the barrier XLA transposes the operands instead of the small result, and packs the weight every call.
        return jax.lax.optimization_barrier(result).T[:count].astype(out), None


def _is_few(problem: MatmulProblem) -> bool:
    return problem.rows <= _FEW_ROWS.get(problem.x_dtype, 0)
