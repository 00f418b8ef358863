"""Gated feed-forward: SwiGLU, GeGLU and their kin (Shazeer 2020, arXiv:2002.05202)."""

from collections.abc import Callable

import jax
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import FeedForward, Sequences

from kanawa_layers.basic.linear import Linear
from kanawa_layers.feedforward.gating import Gating, Product


class GatedFeedForward(FeedForward):
    """down(activation(gate(x)) * up(x)); silu makes it SwiGLU. Tags: feed_forward_gate, feed_forward_up.

    `gating` says how gate and up meet: their product, unless a model clamps them.
    """

    class Config(FeedForward.Config):
        activation: Callable = jax.nn.silu
        gating: Gating.Config = Product.Config()
        gate: Linear.Config = Linear.Config()
        up: Linear.Config = Linear.Config()
        down: Linear.Config = Linear.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
        )

    def setup(self) -> None:
        """Declares the two projections up to `hidden_dim` and the one down."""
        cfg = self.config
        for name in ("gate", "up"):
            self.add_child(
                name,
                getattr(cfg, name),
                input_shape=(cfg.input_dim,),
                output_shape=(cfg.hidden_dim,),
                axes=("embed", "mlp"),
            )
        self.add_child(
            "down",
            cfg.down,
            input_shape=(cfg.hidden_dim,),
            output_shape=(cfg.input_dim,),
            axes=("mlp", "embed"),
        )
        self._gating = cfg.gating.build()

    def forward(self, x: Float[Array, "B T E"], sequences: Sequences) -> Float[Array, "B T E"]:
        """Returns the transformed tokens."""
        del sequences
        gate = self.tag("feed_forward_gate", self.gate(x))
        up = self.tag("feed_forward_up", self.up(x))
        hidden = self._gating.combine(self.config.activation, gate, up)
        # Still split between up and down (Megatron's order): one reduction after `down` is all that tensor parallelism
        # costs.
        hidden = kn.constrain(hidden, ("batch", "length", "mlp"))
        return kn.constrain(self.down(hidden), ("batch", "length", "embed"))
