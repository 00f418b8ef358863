"""A product of two floating operands through an 8-bit format, scaled by row on the left and column on the right."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from kanawa.kernels.quantized_matmul import quantized_matmul
from kanawa.kernels.quantized_matmul.formats import NumberFormat
from kanawa.kernels.quantized_matmul.quantize import quantize_lhs, quantize_rhs


def quantised_product(
    x: Float[Array, "..."],
    x_format: NumberFormat,
    weight: Float[Array, "..."],
    weight_format: NumberFormat,
    num_contracted: int,
) -> Float[Array, "..."]:
    """Returns x over its last dimensions times the weight's first, in x's dtype."""
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


def outputs_first(weight: Float[Array, "..."], num_contracted: int) -> Float[Array, "..."]:
    """Returns [*outputs, *inputs] of a weight [*inputs, *outputs]; the compiler folds it into the product."""
    order = (*range(num_contracted, weight.ndim), *range(num_contracted))
    return jnp.transpose(weight, order)


def contract_rows(x: Float[Array, "..."], num_rows: int) -> Float[Array, "..."]:
    """Returns [*inputs, *rows] of activations [*rows, *inputs], for a product that sums over rows."""
    return outputs_first(x, num_rows)
