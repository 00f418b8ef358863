"""matmul.cpu.dots: serving's matmuls in bfloat16 by a native function that packs nothing."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels.matmul.problem import MatmulProblem
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.verdict import Verdict, first_refusal, refuse

from kanawa_backends_cpu.kernels.matmul.available import DOTS_CHUNK, DOTS_COLUMNS, why_no_native
from kanawa_backends_cpu.kernels.matmul.operands import in_one_dtype, unfit_dtypes
from kanawa_backends_cpu.processor import has_bf16_pairs, processor

#: Rows up to which it is faster than oneDNN, which packs the weight: that pays for more rows.
_MOST_ROWS = 256


class DotsMatmul(Kernel):
    """Reads both operands in place, once each for few rows, and sums in fp32 in an order that rows don't change."""

    name: ClassVar[str] = "matmul.cpu.dots"
    priority: ClassVar[int] = 15
    local: ClassVar[bool] = True
    in_process: ClassVar[bool] = True

    def supports(self, problem: MatmulProblem, device: Any) -> Verdict:
        """Returns support for serving's matmuls with weights laid out outputs first."""
        del device
        p = problem
        unfit = unfit_dtypes(p) or why_no_native()
        if unfit:
            return refuse(unfit)
        return first_refusal(
            (not has_bf16_pairs(), f"it multiplies by AVX512_BF16 where there is no AMX; this is {processor().name}"),
            (in_one_dtype(p) != "bfloat16", "it multiplies bfloat16"),
            (p.purpose == "train", "it is for prefill and decoding"),
            (p.row_invariant, "training sums in another order"),
            (p.weight_layout != "outputs_first", "the weight is laid out inner first; it takes outputs first"),
            (p.x_layout != "rows_first", "x is laid out inner first; it takes rows first"),
            (p.rows > _MOST_ROWS, f"{p.rows} rows are over {_MOST_ROWS}, from where on packing the weight pays"),
            (p.inner % DOTS_CHUNK > 0, f"{p.inner} contracted numbers are no multiple of {DOTS_CHUNK}"),
            (p.outputs < DOTS_COLUMNS, f"{p.outputs} outputs are under {DOTS_COLUMNS}"),
        )

    def preferred(self, problem: MatmulProblem, device: Any) -> MatmulProblem:
        """Returns the problem with the weight's outputs first."""
        del device
        return problem if problem.purpose == "train" else dataclasses.replace(problem, weight_layout="outputs_first")

    def forward(self, problem: MatmulProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (out [rows, outputs], None)."""
        from kanawa_backends_cpu.kernels.matmul import native_dots

        x, weight = (operands[name].astype(jnp.bfloat16) for name in ("x", "weight"))
        return native_dots.call(x, weight, dtype=jnp.dtype(problem.dtype)), None
