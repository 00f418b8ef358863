"""Slots of attention layers: sinks in the softmax, gates of the output, scales of queries beyond the constant one."""

import abc
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.arrays.broadcast import along_last

from kanawa_layers.basic.linear import Linear


class Sinks(kn.Module):
    """Adds one logit for each query head, so that a head can attend to nothing."""

    class Config(kn.Module.Config):
        num_heads: kn.Size = kn.FROM_PARENT

    @abc.abstractmethod
    def forward(self) -> Float[Array, " H"]:
        """Returns the logits, fp32."""


class LearnedSinks(Sinks):
    """A trained logit a head, as in gpt-oss (arXiv:2508.10925); 0 at the start, never decayed."""

    class Config(Sinks.Config):
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"logits": "sinks"})

    def setup(self) -> None:
        """Declares `logits`, [heads]."""
        # Decay would pull every head towards attending to nothing.
        self.add_param("logits", (self.config.num_heads,), axes=("heads",), init=kn.zeros, weight_decay=0.0)

    def forward(self) -> Float[Array, " H"]:
        """Returns the trained logits."""
        return self.param("logits", jnp.float32)


class ZeroSinks(Sinks):
    """A logit of 0: the softmax with one more in its denominator (Miller 2023, "Attention is off by one")."""

    def forward(self) -> Float[Array, " H"]:
        """Returns zeros."""
        return jnp.zeros((self.config.num_heads,), jnp.float32)


class OutputGate(kn.Module):
    """Multiplies heads' outputs, before the output projection, by gates in (0, 1)."""

    projection: Linear

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        num_heads: kn.Size = kn.FROM_PARENT
        head_dim: kn.Size = kn.FROM_PARENT
        projection: Linear.Config = Linear.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(children={"projection": ""})

    #: Whether each element of a head has a gate, or the head as a whole.
    each_element: ClassVar[bool]

    def setup(self) -> None:
        """Declares the projection, [embed, heads, head_dim] or [embed, heads]."""
        cfg = self.config
        # Shaped like heads, not flat, so that a gate is sharded with the head it multiplies.
        gates = ((cfg.num_heads, "heads"), (cfg.head_dim, "head_dim"))[: 2 if self.each_element else 1]
        self.add_child(
            "projection",
            cfg.projection,
            input_shape=(cfg.input_dim,),
            output_shape=tuple(size for size, _ in gates),
            axes=("embed", *(axis for _, axis in gates)),
        )

    @abc.abstractmethod
    def forward(self, out: Float[Array, "B T H D"], x: Float[Array, "B T E"]) -> Float[Array, "B T H D"]:
        """Returns gated outputs; `x` is the attention layer's input."""


class ElementwiseGate(OutputGate):
    """A gate for each element of each head."""

    each_element = True

    def forward(self, out: Float[Array, "B T H D"], x: Float[Array, "B T E"]) -> Float[Array, "B T H D"]:
        """Returns out * sigmoid(projection(x))."""
        return out * jax.nn.sigmoid(self.projection(x))


class HeadGate(OutputGate):
    """One gate for each head."""

    each_element = False

    def forward(self, out: Float[Array, "B T H D"], x: Float[Array, "B T E"]) -> Float[Array, "B T H D"]:
        """Returns out * sigmoid(projection(x)), the same for a whole head."""
        return out * jax.nn.sigmoid(self.projection(x))[..., None]


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
