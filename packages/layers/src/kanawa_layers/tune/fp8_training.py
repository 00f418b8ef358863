"""fp8 training: e4m3 forward, e5m2 for gradients (Micikevicius et al. 2022, arXiv:2209.05433), current scaling."""

from jaxtyping import Array, Float
from kanawa.arrays.spec import ParamSpec
from kanawa.contracts import WeightForm
from kanawa.contracts.weights import Kept
from kanawa.kernels.quantized_matmul.formats import E4M3, E5M2

from kanawa_layers.tune.trained_product import TrainingFormats, trained_product

# Values want E4M3's third bit of mantissa, gradients E5M2's range: up to 57,344 instead of 448.
_FORMATS = TrainingFormats(E4M3, E5M2, weight_gradient=True)


class Fp8Training(WeightForm):
    """Weights stay fp32 in storage; all three products run in fp8, each operand scaled by row or column.

    Scales are the absolute maxima of what is multiplied, now: no history, no state. The gradient of the rounding is
    straight through.
    """

    class Config(WeightForm.Config):
        """Nothing to configure."""

    def product(self, x: Float[Array, "..."], kept: Kept, spec: ParamSpec) -> Float[Array, "..."]:
        """Returns the product, in x's dtype."""
        return trained_product(x, kept[""], len(spec.fan_in_axes), _FORMATS)
