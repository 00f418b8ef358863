"""Gated feed-forward: SwiGLU, GeGLU and others (Shazeer 2020, arXiv:2002.05202), with two input projections or one."""

import abc
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import FeedForward, Fusable, Sequences

from kanawa_layers.basic.linear import Linear, add_linear, are_alike


class Gating(kn.Configurable):
    """Combines the gate's and the other projection into the hidden activations. Pure, no parameters."""

    @abc.abstractmethod
    def combine(
        self, activation: Callable[..., Array], gate: Float[Array, "..."], up: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        """Returns hidden activations of the inputs' shape and dtype."""


class Product(Gating):
    """activation(gate) * up (Shazeer 2020, arXiv:2002.05202); `up_activation` acts on the other side, if any."""

    class Config(Gating.Config):
        up_activation: Callable[..., Array] | None = None

    def combine(
        self, activation: Callable[..., Array], gate: Float[Array, "..."], up: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        """Returns the product."""
        other = self.config.up_activation
        return activation(gate) * (up if other is None else other(up))


class ClampedProduct(Gating):
    """activation(min(gate, limit)) * (clip(up, -limit, limit) + up_offset), as in gpt-oss (OpenAI 2025, model card).

    With `quick_gelu` as the activation it is gpt-oss' SwiGLU: limit 7, alpha 1.702.
    """

    class Config(Gating.Config):
        limit: kn.Positive = 7.0
        up_offset: kn.Finite = 1.0

    def combine(
        self, activation: Callable[..., Array], gate: Float[Array, "..."], up: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        """Returns the product of the clamped sides."""
        limit: float = self.config.limit
        # The gate is clamped from above only: its activation is close to zero far below zero. With an offset of 1, `up`
        # is a change of the gate, not a factor that has to grow from zero.
        bounded: jax.Array = jnp.clip(up, -limit, limit) + self.config.up_offset
        return activation(jnp.minimum(gate, limit)) * bounded


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
        self.gate_up.mark_parts(1, (1, 1))
        add_linear(self, "down", cfg.hidden_dim, cfg.input_dim, ("mlp", "embed"))
        self._gating = cfg.gating.build()

    def forward(self, x: Float[Array, "B T E"], sequences: Sequences) -> Float[Array, "B T E"]:
        """Returns the transformed tokens."""
        del sequences
        both = self.tag("feed_forward_gate_up", self.gate_up(x))
        hidden = self._gating.combine(self.config.activation, both[..., 0, :], both[..., 1, :])
        hidden = kn.constrain(hidden, ("batch", "length", "mlp"))
        return kn.constrain(self.down(hidden), ("batch", "length", "embed"))


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
