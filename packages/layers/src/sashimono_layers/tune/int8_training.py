"""int8 training: both products with the weight run in int8, its gradient doesn't (SwitchBack, arXiv:2304.13013)."""

import functools

import jax
from jaxtyping import Array, Float
from sashimono.arrays.spec import ParamSpec
from sashimono.contracts import WeightForm
from sashimono.contracts.weights import Kept, contract
from sashimono.kernels.quantized_matmul.formats import INT8

from sashimono_layers.tune.quantised_product import contract_rows, outputs_first, quantised_product


class Int8Training(WeightForm):
    """Weights stay fp32 in storage; at each use, weight and activations are scaled to int8 by row and column.

    Scales are the absolute maxima of what is multiplied, now. The gradient of the rounding is straight through. The
    weight's gradient sums over all tokens, where int8 loses most (section 2.2.1 there), so it keeps x's dtype.
    """

    class Config(WeightForm.Config):
        """Nothing to configure."""

    def product(self, x: Float[Array, "..."], kept: Kept, spec: ParamSpec) -> Float[Array, "..."]:
        """Returns the product, in x's dtype."""
        return _product(x, kept[""], len(spec.fan_in_axes))


# jax's own, not sm.custom_vjp: it takes all it needs as arguments, and the kernel chosen in it is still recorded.
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x: Float[Array, "..."], weight: Float[Array, "..."], num_contracted: int) -> Float[Array, "..."]:
    return quantised_product(x, INT8, weight, INT8, num_contracted)


def _forward(
    x: Float[Array, "..."], weight: Float[Array, "..."], num_contracted: int
) -> tuple[Float[Array, "..."], tuple[Array, Array]]:
    return _product(x, weight, num_contracted), (x, weight)


def _backward(num_contracted: int, saved: tuple[Array, Array], dy: Float[Array, "..."]) -> tuple[Array, Array]:
    x, weight = saved
    num_rows = x.ndim - num_contracted
    dx = quantised_product(dy, INT8, outputs_first(weight, num_contracted), INT8, weight.ndim - num_contracted)
    return dx, contract(contract_rows(x, num_rows), dy, num_rows).astype(weight.dtype)


_product.defvjp(_forward, _backward)
