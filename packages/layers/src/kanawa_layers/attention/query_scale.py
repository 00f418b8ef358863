"""Scales of queries beyond the constant one: learned per dimension, or growing with position."""

import abc
import math

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.arrays.broadcast import along_last


class QueryScale(kn.Module):
    """Multiplies queries after rotation, on top of the attention's constant scale."""

    class Config(kn.Module.Config):
        head_dim: kn.Size = kn.FROM_PARENT

    @abc.abstractmethod
    def forward(self, q: Float[Array, "B T H D"], positions: Int[Array, "B T"]) -> Float[Array, "B T H D"]:
        """Returns scaled queries in q's dtype."""


class PerDimScale(QueryScale):
    """softplus(scale) / ln 2 for each dimension of a head; 1 at the start (Lingvo's PerDimScale)."""

    class Config(QueryScale.Config):
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"scale": "scale"})

    def setup(self) -> None:
        """Declares `scale`, zeros, never decayed."""
        self.add_param("scale", (self.config.head_dim,), axes=("norm",), init=kn.zeros, weight_decay=0.0)

    def forward(self, q: Float[Array, "B T H D"], positions: Int[Array, "B T"]) -> Float[Array, "B T H D"]:
        """Returns q times the learned scale."""
        del positions
        # softplus(0) = ln 2, so a zero parameter multiplies by exactly 1.
        scale = jax.nn.softplus(self.param("scale", jnp.float32)) / math.log(2.0)
        return (q.astype(jnp.float32) * along_last(scale, q.ndim)).astype(q.dtype)


class TemperatureTuning(QueryScale):
    """1 + coefficient * ln(1 + floor((position + 1) / floor_scale)): sharper attention at far positions.

    As in Llama 4's layers without rotary positions; after Nakanishi 2025, arXiv:2501.19399.
    """

    class Config(QueryScale.Config):
        coefficient: kn.Strength = 0.1
        floor_scale: kn.Positive = 8192.0

    def forward(self, q: Float[Array, "B T H D"], positions: Int[Array, "B T"]) -> Float[Array, "B T H D"]:
        """Returns q times the scale of its position."""
        cfg = self.config
        steps = jnp.floor((positions.astype(jnp.float32) + 1.0) / cfg.floor_scale)
        scale: jax.Array = 1.0 + cfg.coefficient * jnp.log1p(steps)
        return (q.astype(jnp.float32) * scale[:, :, None, None]).astype(q.dtype)
