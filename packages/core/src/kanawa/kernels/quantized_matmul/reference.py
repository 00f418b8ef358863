"""quantized_matmul.any.reference: one dot, and scales outside of it where they can be."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from kanawa.kernels.accumulate import wide
from kanawa.kernels.matmul import matmul
from kanawa.kernels.operation import Operands, UniversalKernel
from kanawa.kernels.quantized_matmul.formats import FORMATS, format_named
from kanawa.kernels.quantized_matmul.problem import QuantizedMatmulProblem
from kanawa.kernels.quantized_matmul.quantize import scaled_rhs


class ReferenceQuantizedMatmul(UniversalKernel):
    """Integers accumulate in int32, all else in fp32. Differentiable in an lhs that isn't quantised, only."""

    name: ClassVar[str] = "quantized_matmul.any.reference"
    operation: ClassVar[str] = "quantized_matmul"
    autodiff: ClassVar[bool] = True

    def forward(self, problem: QuantizedMatmulProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (out [*rows, *columns], None)."""
        p, lhs = problem, operands["lhs"]
        scale = jax.lax.stop_gradient(operands["rhs_scale"])
        rhs, outside = self._right(p, lhs, operands["rhs"], scale)
        floats = wide(p.dtype)
        if p.lhs_format in FORMATS:
            dims = (tuple(range(lhs.ndim - p.num_contracted, lhs.ndim)), tuple(range(p.num_contracted)))
            exact = jnp.dtype("int32") if lhs.dtype == jnp.int8 else floats
            out = jax.lax.dot_general(lhs, rhs, (dims, ((), ())), preferred_element_type=exact).astype(floats)
        else:
            # Only the weight is quantised: a matmul with dense values.
            out = matmul(lhs, rhs, p.num_contracted, dtype=floats)
        if outside is not None:
            out = out * outside.astype(floats).reshape((1,) * (lhs.ndim - p.num_contracted) + outside.shape[1:])
        if "lhs_scale" in operands:
            left = jax.lax.stop_gradient(operands["lhs_scale"])
            out = out * left.astype(floats).reshape(left.shape + (1,) * (rhs.ndim - p.num_contracted))
        return out.astype(p.dtype), None

    def _right(
        self, p: QuantizedMatmulProblem, lhs: jax.Array, rhs: jax.Array, scale: jax.Array
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns the right operand of the dot, and the scale that is left to apply to its result."""
        fmt = format_named(p.rhs_format)
        if p.lhs_format in FORMATS:
            return rhs, scale
        # Float8 is a floating dtype to JAX, which would otherwise derive by it; codes have no gradient.
        rhs = jax.lax.stop_gradient(rhs) if jnp.issubdtype(rhs.dtype, jnp.floating) else rhs
        values = fmt.values(rhs, p.rhs_shape[0], wide(lhs.dtype))
        if p.groups == 1 and not fmt.levels:
            # Integers and eight-bit floats are exact in any wider float: scale the result instead.
            return values.astype(lhs.dtype), scale
        return scaled_rhs(values, scale, p.num_contracted).astype(lhs.dtype), None
