"""matmul.cpu.native: functions compiled by LLVM; as fast as oneDNN for many rows, and cached on disk with a program."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels.matmul.problem import MatmulProblem
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.verdict import SUPPORTED, Verdict, first_refusal, refuse

from kanawa_backends_cpu.kernels.matmul.available import why_no_native
from kanawa_backends_cpu.kernels.matmul.operands import few_rows, in_one_dtype, unfit_dtypes

#: Multiplications of the smallest matmul that is faster than XLA's. In float32 XLA is faster by half with few rows, and
#: slower for gradients of many, whose operands it would transpose first.
SMALLEST = {"float32": 2**26, "bfloat16": 2**20}


class NativeMatmul(Kernel):
    """Reads either layout in place, and sums in fp32; bfloat16 by AMX's tiles or AVX-512's pairs, if any.

    Each number is a sum over the contracted dimension in one order, whatever the sizes of the others.
    """

    name: ClassVar[str] = "matmul.cpu.native"
    priority: ClassVar[int] = 20
    local: ClassVar[bool] = True
    in_process: ClassVar[bool] = True

    def supports(self, problem: MatmulProblem, device: Any) -> Verdict:
        """Returns support for training's matmuls, prefill's of weights as they are trained, and row-invariant ones."""
        del device
        p = problem
        unfit = unfit_dtypes(p) or why_no_native()
        if unfit:
            return refuse(unfit)
        if p.row_invariant:
            return SUPPORTED
        smallest = SMALLEST[in_one_dtype(p)]
        size = p.rows * p.inner * p.outputs
        return first_refusal(
            (size < smallest, f"{size:,} multiplications are under {smallest:,}, where XLA is faster"),
            (few_rows(p), f"{p.rows} rows in serving are left to oneDNN and XLA"),
            (
                p.purpose != "train" and p.weight_layout == "outputs_first",
                "it serves no weights laid out outputs first",
            ),
        )

    def forward(self, problem: MatmulProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (out [rows, outputs], None)."""
        from kanawa_backends_cpu.kernels.matmul import native_call

        dtype = jnp.dtype(in_one_dtype(problem))
        out = native_call.call(
            operands["x"].astype(dtype),
            operands["weight"].astype(dtype),
            transpose_a=problem.x_layout == "inner_first",
            transpose_b=problem.weight_layout == "outputs_first",
            dtype=jnp.dtype(problem.dtype),
        )
        return out, None
