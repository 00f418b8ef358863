"""How a gated feed-forward combines its two projections; the activation itself is a slot of the layer."""

import abc
from collections.abc import Callable

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float


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
