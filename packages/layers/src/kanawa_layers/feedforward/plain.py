"""Feed-forward of two projections (Vaswani et al. 2017), and the bottleneck adapter (Houlsby et al. 2019)."""

from collections.abc import Callable

import jax
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import FeedForward, Sequences

from kanawa_layers.basic.linear import Linear, add_linear


class PlainFeedForward(FeedForward):
    """down(activation(up(x))). Tag: feed_forward_up."""

    up: Linear
    down: Linear

    class Config(FeedForward.Config):
        activation: Callable[..., Array] = jax.nn.gelu
        up: Linear.Config = Linear.Config()
        down: Linear.Config = Linear.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(children={"up": "up_proj", "down": "down_proj"})

    def setup(self) -> None:
        """Declares the projections to `hidden_dim` and back."""
        cfg = self.config
        add_linear(self, "up", cfg.input_dim, cfg.hidden_dim, ("embed", "mlp"))
        add_linear(self, "down", cfg.hidden_dim, cfg.input_dim, ("mlp", "embed"))

    def forward(self, x: Float[Array, "B T E"], sequences: Sequences) -> Float[Array, "B T E"]:
        """Returns the transformed tokens."""
        del sequences
        hidden = self.config.activation(self.tag("feed_forward_up", self.up(x)))
        hidden = kn.constrain(hidden, ("batch", "length", "mlp"))
        return kn.constrain(self.down(hidden), ("batch", "length", "embed"))


class Bottleneck(kn.Module):
    """y + up(activation(down(y))) through `width` channels, nearly the identity at first (arXiv:1902.00751)."""

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
