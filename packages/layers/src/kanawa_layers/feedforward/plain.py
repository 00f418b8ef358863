"""Plain feed-forward: two projections with an activation between (Vaswani et al. 2017)."""

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
