"""A product with a weight that is trained in 8-bit formats: rounded in each use, its gradient straight through."""

import dataclasses
import functools

import jax
from jaxtyping import Array, Float
from kanawa.kernels.matmul import matmul
from kanawa.kernels.quantized_matmul.formats import NumberFormat

from kanawa_layers.tune.quantised_product import contract_rows, outputs_first, quantised_product


@dataclasses.dataclass(frozen=True)
class TrainingFormats:
    """What operands are rounded to: values, gradients, and whether the weight's gradient is made in these at all."""

    values: NumberFormat
    gradients: NumberFormat
    weight_gradient: bool


# jax's own, not kn.custom_vjp: it takes all it needs as arguments, and the kernel chosen in it is still recorded.
@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def trained_product(
    x: Float[Array, "..."], weight: Float[Array, "..."], num_contracted: int, formats: TrainingFormats
) -> Float[Array, "..."]:
    """Returns x over its last dimensions times the weight's first, in x's dtype."""
    return quantised_product(x, formats.values, weight, formats.values, num_contracted)


def _forward(
    x: Float[Array, "..."], weight: Float[Array, "..."], num_contracted: int, formats: TrainingFormats
) -> tuple[Float[Array, "..."], tuple[Array, Array]]:
    return trained_product(x, weight, num_contracted, formats), (x, weight)


def _backward(
    num_contracted: int, formats: TrainingFormats, saved: tuple[Array, Array], dy: Float[Array, "..."]
) -> tuple[Array, Array]:
    x, weight = saved
    num_rows, num_outputs = x.ndim - num_contracted, weight.ndim - num_contracted
    dx = quantised_product(dy, formats.gradients, outputs_first(weight, num_contracted), formats.values, num_outputs)
    # x and dy are rounded anew: a scale must not vary along what is summed over, and here that is the rows.
    columns = contract_rows(x, num_rows)
    if formats.weight_gradient:
        dw = quantised_product(columns, formats.values, dy, formats.gradients, num_rows)
    else:
        dw = matmul(columns, dy, num_rows)
    return dx, dw.astype(weight.dtype)


trained_product.defvjp(_forward, _backward)
