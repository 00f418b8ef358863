"""Attention sinks: logits that take part in a head's softmax without a value."""

import abc

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float


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
