"""quantized_matmul.gpu.xla: one dot of the stored numbers with the scales in its epilogue, as XLA compiles it.

Nothing of ours to add: ahead of time XLA makes one Triton fusion of the dot and its scales, on a device it measures
that against `__cublas$lt$matmul$f8` (int8: `__cublas$lt$matmul`) and takes the quicker, and it splits the product over
a mesh as it splits any. cuBLASLt alone would round no less, write the fp32 product before scaling it, and on Hopper
transpose a [K, N] weight first; the temporaries of both are asserted in tests/aot.
"""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels.number_formats import FORMATS, format_named
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.quantized_matmul import QuantizedMatmulProblem, ReferenceQuantizedMatmul
from kanawa.kernels.verdict import Verdict, first_refusal
from kanawa.plugins import DeviceSpec

_REFERENCE = ReferenceQuantizedMatmul()
#: cuBLASLt takes eight-bit operands in multiples of 16 bytes; Triton's products have no narrower side either.
_NARROWEST = 16


class XlaQuantizedMatmul(Kernel):
    """Eight-bit weights with one scale a column, lhs quantised alike (one scale a row) or floating."""

    name: ClassVar[str] = "quantized_matmul.gpu.xla"
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True
    autodiff: ClassVar[bool] = True

    def supports(self, problem: QuantizedMatmulProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support, or what the problem has that XLA would write out in full, or the device lacks."""
        p = problem
        fmt = format_named(p.rhs_format)
        inner, columns = math.prod(p.rhs_shape[: p.num_contracted]), math.prod(p.rhs_shape[p.num_contracted :])
        narrow = [n for n in (inner, columns) if n % _NARROWEST]
        quantised = p.lhs_format in FORMATS
        peaks = {} if device is None else device.peak_flops
        missing = [f for f in (p.lhs_format, p.rhs_format) if quantised and peaks and f not in peaks]
        name = "" if device is None else device.name
        return first_refusal(
            (fmt.packed, f"{p.rhs_format}: XLA would unpack the whole weight first"),
            (p.groups > 1, f"{p.groups} groups: XLA would scale the whole weight first"),
            (bool(narrow), f"widths {narrow} aren't multiples of {_NARROWEST}"),
            (bool(missing), f"{name} multiplies no {' and '.join(missing)}"),
            (p.lhs_format == p.rhs_format == "float8_e5m2", "float8_e5m2 on both sides; tensor cores want e4m3 on one"),
        )

    def forward(self, problem: QuantizedMatmulProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (out [*rows, *columns], None)."""
        if problem.lhs_format in FORMATS:
            return _REFERENCE.forward(problem, operands)
        return self._weight_alone(problem, operands), None

    def _weight_alone(self, p: QuantizedMatmulProblem, operands: Operands) -> jax.Array:
        lhs = operands["lhs"]
        # Eight bits are exact in every wider float. Converted at once, and not through fp32 as the reference does,
        # which XLA would write out in full (121 MB of temporaries, not 3, at 4,096 x 14,336).
        rhs = jax.lax.stop_gradient(operands["rhs"]).astype(lhs.dtype)
        rows = lhs.ndim - p.num_contracted
        dims = (tuple(range(rows, lhs.ndim)), tuple(range(p.num_contracted)))
        product = jax.lax.dot_general(lhs, rhs, (dims, ((), ())), preferred_element_type=jnp.float32)
        scale = jax.lax.stop_gradient(operands["rhs_scale"])
        scaled: jax.Array = product * scale.reshape((1,) * rows + scale.shape[1:])
        return scaled.astype(p.dtype)
