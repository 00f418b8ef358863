"""Training with 8-bit matmuls: operands are rounded at each use, gradients pass the rounding unchanged."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from kanawa.arrays.spec import ParamSpec
from kanawa.contracts import WeightForm
from kanawa.contracts.weights import StoredWeight
from kanawa.kernels.matmul import matmul
from kanawa.kernels.number_formats import E4M3, E5M2, INT8, NumberFormat, quantize_lhs, quantize_rhs
from kanawa.kernels.quantized_matmul import quantized_matmul


@dataclasses.dataclass(frozen=True)
class TrainingFormats:
    """The formats of values and of gradients, and whether the matmul of the weight's gradient is rounded as well."""

    values: NumberFormat
    gradients: NumberFormat
    weight_gradient: bool


_INT8 = TrainingFormats(INT8, INT8, weight_gradient=False)
# Values need E4M3's third bit of mantissa, gradients E5M2's range: up to 57,344 instead of 448.
_FP8 = TrainingFormats(E4M3, E5M2, weight_gradient=True)


class Int8Training(WeightForm):
    """Forward matmul and input gradient in int8, weight gradient in x's dtype (SwitchBack, arXiv:2304.13013).

    Weights are stored as fp32; at each use, weight and activations are scaled to int8 by row and column with their
    current absolute maxima. The weight's gradient sums over all tokens, where int8 loses most (section 2.2.1 there).
    """

    def matmul(self, x: Float[Array, "..."], stored: StoredWeight, spec: ParamSpec) -> Float[Array, "..."]:
        """Returns x @ weight, in x's dtype."""
        return eight_bit_matmul(x, stored[""], len(spec.fan_in_axes), _INT8)


class Fp8Training(WeightForm):
    """All three matmuls in fp8: e4m3 forward, e5m2 for gradients (Micikevicius et al. 2022, arXiv:2209.05433).

    Weights are stored as fp32; operands are scaled by row or column with their current absolute maxima.
    """

    def matmul(self, x: Float[Array, "..."], stored: StoredWeight, spec: ParamSpec) -> Float[Array, "..."]:
        """Returns x @ weight, in x's dtype."""
        return eight_bit_matmul(x, stored[""], len(spec.fan_in_axes), _FP8)


# jax's own, not kn.custom_vjp: it takes all it needs as arguments, and the choice of its kernel is still recorded.
@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def eight_bit_matmul(
    x: Float[Array, "..."], weight: Float[Array, "..."], num_contracted: int, formats: TrainingFormats
) -> Float[Array, "..."]:
    """Returns x over its last dimensions times the weight's first, in x's dtype."""
    return _rounded_matmul(x, formats.values, weight, formats.values, num_contracted)


def _forward(
    x: Float[Array, "..."], weight: Float[Array, "..."], num_contracted: int, formats: TrainingFormats
) -> tuple[Float[Array, "..."], tuple[Array, Array]]:
    return eight_bit_matmul(x, weight, num_contracted, formats), (x, weight)


def _backward(
    num_contracted: int, formats: TrainingFormats, saved: tuple[Array, Array], dy: Float[Array, "..."]
) -> tuple[Array, Array]:
    x, weight = saved
    num_rows, num_outputs = x.ndim - num_contracted, weight.ndim - num_contracted
    dx = _rounded_matmul(dy, formats.gradients, _outputs_first(weight, num_contracted), formats.values, num_outputs)
    # x and dy are rounded again: a scale must not vary along the summed dimensions, which are the rows here.
    columns = _outputs_first(x, num_rows)
    if formats.weight_gradient:
        dw = _rounded_matmul(columns, formats.values, dy, formats.gradients, num_rows)
    else:
        dw = matmul(columns, dy, num_rows)
    return dx, dw.astype(weight.dtype)


eight_bit_matmul.defvjp(_forward, _backward)


def _rounded_matmul(
    x: Float[Array, "..."],
    x_format: NumberFormat,
    weight: Float[Array, "..."],
    weight_format: NumberFormat,
    num_contracted: int,
) -> Float[Array, "..."]:
    """Returns the same with both operands rounded, x scaled by row and the weight by column."""
    lhs, lhs_scale = quantize_lhs(x, x_format, num_contracted)
    rhs, rhs_scale = quantize_rhs(weight, weight_format, num_contracted)
    return quantized_matmul(
        lhs,
        rhs,
        rhs_scale,
        rhs_format=weight_format.name,
        rhs_shape=weight.shape,
        num_contracted=num_contracted,
        lhs_scale=lhs_scale,
        dtype=x.dtype,
    )


def _outputs_first(weight: Float[Array, "..."], num_contracted: int) -> Float[Array, "..."]:
    """Returns [*outputs, *inputs] of [*inputs, *outputs]; the compiler folds the transpose into the matmul."""
    return jnp.transpose(weight, (*range(num_contracted, weight.ndim), *range(num_contracted)))
