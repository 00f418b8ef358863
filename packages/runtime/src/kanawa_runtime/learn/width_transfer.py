"""muP: learning rates of hidden matrices by width, so that the best rate of a narrow model is that of a wide one."""

import dataclasses
from collections.abc import Mapping

from kanawa.arrays.spec import ParamSpec
from kanawa.config import REQUIRED, Configurable, Size
from kanawa.contracts import Optimizer
from kanawa.errors import UsageError

from kanawa_runtime.learn.matrices import hidden_matrices

#: The logical axis whose size is a model's width.
_WIDTH = "embed"


class WidthTransfer(Configurable):
    """The learner's `width_transfer` slot: rates are those of a model of `base_width`, where both are the same.

    Tensor Programs V (Yang et al. 2022, arXiv:2203.03466, table 8), for models whose widths all grow together. Hidden
    matrices learn by (base_width / width) ** the optimizer's `width_exponent`, which is 1 for Adam. Embeddings, heads
    and vectors don't change. The head's logits must be scaled by base_width / width too, as the modifier `mup` does;
    hidden matrices are drawn with variance 1 / fan_in, and tables with any fixed one, by the layers themselves.
    """

    class Config(Configurable.Config):
        base_width: Size = REQUIRED

    def scaled(self, specs: Mapping[str, ParamSpec], optimizer: Optimizer) -> dict[str, ParamSpec]:
        """Returns the specs with the rate scales of hidden matrices multiplied.

        Raises UsageError for an optimizer whose rates have no known law, and for parameters without one width.
        """
        exponent = optimizer.width_exponent
        if exponent is None:
            message = (
                f"{type(optimizer).__name__} has no known law by which its best rate falls with width; set "
                "learner.width_transfer=None, or choose another optimizer: adamw, lion, muon, soap, sophia"
            )
            raise UsageError(message)
        factor = (self.config.base_width / width_of(specs)) ** exponent
        matrices = hidden_matrices(specs)
        return {
            path: dataclasses.replace(spec, lr_scale=spec.lr_scale * factor) if path in matrices else spec
            for path, spec in specs.items()
        }


def width_of(specs: Mapping[str, ParamSpec]) -> int:
    """Returns the size of the `embed` axis; raises UsageError where there is none, or there are several sizes."""
    sizes = {
        size for spec in specs.values() for size, axis in zip(spec.shape, spec.axes, strict=True) if axis == _WIDTH
    }
    if len(sizes) != 1:
        found = ", ".join(map(str, sorted(sizes))) or "none"
        message = f"muP needs one width, the size of the axis {_WIDTH!r} of all parameters; found {found}"
        raise UsageError(message)
    return sizes.pop()
