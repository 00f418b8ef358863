"""Bottleneck adapter (Houlsby et al. 2019, arXiv:1902.00751): a small residual network after a branch."""

from collections.abc import Callable

import jax
import kanawa as kn
from jaxtyping import Array, Float

from kanawa_layers.basic.linear import Linear, add_linear


class Bottleneck(kn.Module):
    """y + up(activation(down(y))) through `width` channels; drawn so small that it is nearly the identity at first."""

    down: Linear
    up: Linear

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        width: kn.Size = 64
        activation: Callable[..., Array] = jax.nn.gelu
        down: Linear.Config = Linear.Config(bias=True)
        # A hundredth of the usual deviation; with exactly 0, `down` would get no gradient in the first step.
        up: Linear.Config = Linear.Config(bias=True, init_scale=1e-4)
        foreign: kn.foreign.Names = kn.foreign.Names(children={"down": "down", "up": "up"})

    def setup(self) -> None:
        """Declares both projections."""
        cfg = self.config
        add_linear(self, "down", cfg.input_dim, cfg.width, ("embed", None))
        add_linear(self, "up", cfg.width, cfg.input_dim, (None, "embed"))

    def forward(self, y: Float[Array, "... E"]) -> Float[Array, "... E"]:
        """Returns the adapted branch."""
        return y + self.up(self.config.activation(self.down(y)))
