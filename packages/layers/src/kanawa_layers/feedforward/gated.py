"""Gated feed-forward: SwiGLU, GeGLU and others (Shazeer 2020, arXiv:2002.05202)."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import FeedForward, Fusable, Sequences

from kanawa_layers.basic.linear import Linear, add_linear, are_alike
from kanawa_layers.feedforward.fused_gated import FusedGatedFeedForward
from kanawa_layers.feedforward.gating import Gating, Product


class GatedFeedForward(FeedForward, Fusable):
    """down(activation(gate(x)) * up(x)); silu makes it SwiGLU. Tags: feed_forward_gate, feed_forward_up.

    `gating` combines gate and up: their elementwise product, unless a model clamps them.
    """

    gate: Linear
    up: Linear
    down: Linear

    class Config(FeedForward.Config, Fusable.Config):
        activation: Callable[..., Array] = jax.nn.silu
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
            add_linear(self, name, cfg.input_dim, cfg.hidden_dim, ("embed", "mlp"))
        add_linear(self, "down", cfg.hidden_dim, cfg.input_dim, ("mlp", "embed"))
        self._gating = cfg.gating.build()

    def forward(self, x: Float[Array, "B T E"], sequences: Sequences) -> Float[Array, "B T E"]:
        """Returns the transformed tokens."""
        del sequences
        gate = self.tag("feed_forward_gate", self.gate(x))
        up = self.tag("feed_forward_up", self.up(x))
        hidden = self._gating.combine(self.config.activation, gate, up)
        # Still sharded between up and down (Megatron's order): tensor parallelism costs one reduction after `down`.
        hidden = kn.constrain(hidden, ("batch", "length", "mlp"))
        return kn.constrain(self.down(hidden), ("batch", "length", "embed"))

    @classmethod
    def fused_config(cls, cfg: Config) -> FusedGatedFeedForward.Config | None:
        """Returns the config of the layer with gate and up in one weight."""
        # The fused layer computes what this class does, not what a subclass does.
        if cls is not GatedFeedForward or not are_alike(cfg.gate, cfg.up):
            return None
        fields = {name: getattr(cfg, name) for name in ("input_dim", "hidden_dim", "activation", "gating", "down")}
        return FusedGatedFeedForward.Config(gate_up=cfg.gate.clone(), **fields)

    @kn.nowrap
    def fuse(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns `gate_up` of the parameters of `gate` and `up`, and the rest."""
        both = jax.tree.map(lambda gate, up: jnp.stack([gate, up], axis=-2), params["gate"], params["up"])
        return {**{name: value for name, value in params.items() if name not in ("gate", "up")}, "gate_up": both}
