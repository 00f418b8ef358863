"""int8 training: both products with the weight run in int8, its gradient doesn't (SwitchBack, arXiv:2304.13013)."""

from jaxtyping import Array, Float
from kanawa.arrays.spec import ParamSpec
from kanawa.contracts import WeightForm
from kanawa.contracts.weights import Kept
from kanawa.kernels.quantized_matmul.formats import INT8

from kanawa_layers.tune.trained_product import TrainingFormats, trained_product

_FORMATS = TrainingFormats(INT8, INT8, weight_gradient=False)


class Int8Training(WeightForm):
    """Weights stay fp32 in storage; at each use, weight and activations are scaled to int8 by row and column.

    Scales are the absolute maxima of what is multiplied, now. The gradient of the rounding is straight through. The
    weight's gradient sums over all tokens, where int8 loses most (section 2.2.1 there), so it keeps x's dtype.
    """

    class Config(WeightForm.Config):
        """Nothing to configure."""

    def product(self, x: Float[Array, "..."], kept: Kept, spec: ParamSpec) -> Float[Array, "..."]:
        """Returns the product, in x's dtype."""
        return trained_product(x, kept[""], len(spec.fan_in_axes), _FORMATS)
