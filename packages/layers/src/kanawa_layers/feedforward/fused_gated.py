"""Gated feed-forward whose two input projections are one matmul, as in Phi-3 and GLM."""

from collections.abc import Callable

import jax
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import FeedForward, Sequences

from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.feedforward.gating import Gating, Product


class FusedGatedFeedForward(FeedForward):
    """GatedFeedForward with gate and up in one weight [embed, 2, mlp]; gate is index 0. Tag: feed_forward_gate_up.

    Reads x once instead of twice. The pair axis is separate from `mlp`, so that tensor parallelism splits both alike.
    """

    gate_up: Linear
    down: Linear

    class Config(FeedForward.Config):
        activation: Callable[..., Array] = jax.nn.silu
        gating: Gating.Config = Product.Config()
        gate_up: Linear.Config = Linear.Config()
        down: Linear.Config = Linear.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={"down": "down_proj"},
            apart={
                "gate_up": (
                    kn.foreign.Sliced(name="gate_proj", axis=-2, stop=1),
                    kn.foreign.Sliced(name="up_proj", axis=-2, start=1),
                )
            },
        )

    def setup(self) -> None:
        """Declares the fused projection up to `hidden_dim` and the one down."""
        cfg = self.config
        self.add_child(
            "gate_up",
            cfg.gate_up,
            input_shape=(cfg.input_dim,),
            output_shape=(2, cfg.hidden_dim),
            axes=("embed", None, "mlp"),
        )
        add_linear(self, "down", cfg.hidden_dim, cfg.input_dim, ("mlp", "embed"))
        self._gating = cfg.gating.build()

    def forward(self, x: Float[Array, "B T E"], sequences: Sequences) -> Float[Array, "B T E"]:
        """Returns the transformed tokens."""
        del sequences
        both = self.tag("feed_forward_gate_up", self.gate_up(x))
        hidden = self._gating.combine(self.config.activation, both[..., 0, :], both[..., 1, :])
        hidden = kn.constrain(hidden, ("batch", "length", "mlp"))
        return kn.constrain(self.down(hidden), ("batch", "length", "embed"))
