"""matmul.cpu.onednn: jaxlib's oneDNN; the fastest for serving's rows in bfloat16, but no compile cache stores it."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels.matmul.problem import MatmulProblem
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.verdict import Verdict, first_refusal, refuse

from kanawa_backends_cpu import onednn
from kanawa_backends_cpu.kernels.matmul.available import why_no_onednn
from kanawa_backends_cpu.kernels.matmul.native import SMALLEST
from kanawa_backends_cpu.kernels.matmul.operands import FEW_ROWS, few_rows, in_one_dtype, unfit_dtypes

#: Multiplications of the smallest matmul that is faster than XLA's in serving. A call takes 70 us to set up: 8 rows of
#: a 512 x 1536 weight in bfloat16 took 0.15 ms, and 0.9 ms by XLA, which converts the weight to float32 first.
_SMALLEST_IN_SERVING = 2**16
#: Elements of a float32 weight laid out outputs first from which on it is faster than XLA.
_LARGE_WEIGHT = 2**17
#: Rows up to which XLA is faster by a weight laid out outputs first, with sums left in float32 (matmul.cpu.few-rows).
FASTER_BY_XLA = {"float32": 16, "bfloat16": 256}


class OnednnMatmul(Kernel):
    """Reads either layout in place, uses the processor's bfloat16 units, and sums in fp32."""

    name: ClassVar[str] = "matmul.cpu.onednn"
    priority: ClassVar[int] = 10
    local: ClassVar[bool] = True
    in_process: ClassVar[bool] = True

    def supports(self, problem: MatmulProblem, device: Any) -> Verdict:
        """Returns support where it is faster than XLA."""
        del device
        p = problem
        dtype = in_one_dtype(p)
        unfit = unfit_dtypes(p) or why_no_onednn(dtype)
        if unfit:
            return refuse(unfit)
        size = p.rows * p.inner * p.outputs
        if p.purpose != "train" and p.weight_layout == "outputs_first":
            weight = p.inner * p.outputs
            few = FASTER_BY_XLA[dtype]
            return first_refusal(
                (p.rows <= few, f"{p.rows} rows in {dtype} are at most {few}, which XLA computes faster"),
                (size < _SMALLEST_IN_SERVING, f"{size:,} multiplications are under {_SMALLEST_IN_SERVING:,}"),
                (dtype == "float32" and weight < _LARGE_WEIGHT, f"a weight of {weight:,} is under {_LARGE_WEIGHT:,}"),
            )
        smallest = _SMALLEST_IN_SERVING if few_rows(p) and dtype == "bfloat16" else SMALLEST[dtype]
        return first_refusal((size < smallest, f"{size:,} multiplications are under {smallest:,}, where XLA is faster"))

    def preferred(self, problem: MatmulProblem, device: Any) -> MatmulProblem:
        """Returns the problem with the weight's outputs first in serving: as left operand, which isn't packed."""
        del device
        return problem if problem.purpose == "train" else dataclasses.replace(problem, weight_layout="outputs_first")

    def forward(self, problem: MatmulProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (out [rows, outputs], None)."""
        p, result = problem, jnp.dtype(problem.dtype)
        dtype = jnp.dtype(in_one_dtype(p))
        x, weight = operands["x"].astype(dtype), operands["weight"].astype(dtype)
        outputs_first, inner_first = p.weight_layout == "outputs_first", p.x_layout == "inner_first"
        if p.rows <= FEW_ROWS and outputs_first and p.purpose != "train":
            # The left operand isn't packed: that is the large one.
            return onednn.call(weight, x, transpose_b=not inner_first, dtype=result).T, None
        return onednn.call(x, weight, transpose_a=inner_first, transpose_b=outputs_first, dtype=result), None
