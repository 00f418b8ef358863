"""fp8 training: e4m3 forward, e5m2 for gradients (Micikevicius et al. 2022, arXiv:2209.05433), current scaling."""

import functools

import jax
from jaxtyping import Array, Float
from sashimono.arrays.spec import ParamSpec
from sashimono.contracts import WeightForm
from sashimono.contracts.weights import Kept
from sashimono.kernels.quantized_matmul.formats import E4M3, E5M2

from sashimono_layers.tune.quantised_product import contract_rows, outputs_first, quantised_product


class Fp8Training(WeightForm):
    """Weights stay fp32 in storage; all three products run in fp8, each operand scaled by row or column.

    Scales are the absolute maxima of what is multiplied, now: no history, no state. The gradient of the rounding is
    straight through.
    """

    class Config(WeightForm.Config):
        """Nothing to configure."""

    def product(self, x: Float[Array, "..."], kept: Kept, spec: ParamSpec) -> Float[Array, "..."]:
        """Returns the product, in x's dtype."""
        return _product(x, kept[""], len(spec.fan_in_axes))


# jax's own, not sm.custom_vjp: it takes all it needs as arguments, and the kernel chosen in it is still recorded.
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x: Float[Array, "..."], weight: Float[Array, "..."], num_contracted: int) -> Float[Array, "..."]:
    return quantised_product(x, E4M3, weight, E4M3, num_contracted)


def _forward(
    x: Float[Array, "..."], weight: Float[Array, "..."], num_contracted: int
) -> tuple[Float[Array, "..."], tuple[Array, Array]]:
    return _product(x, weight, num_contracted), (x, weight)


def _backward(num_contracted: int, saved: tuple[Array, Array], dy: Float[Array, "..."]) -> tuple[Array, Array]:
    x, weight = saved
    num_rows = x.ndim - num_contracted
    dx = quantised_product(dy, E5M2, outputs_first(weight, num_contracted), E4M3, weight.ndim - num_contracted)
    dw = quantised_product(contract_rows(x, num_rows), E4M3, dy, E5M2, num_rows)
    return dx, dw.astype(weight.dtype)


_product.defvjp(_forward, _backward)
