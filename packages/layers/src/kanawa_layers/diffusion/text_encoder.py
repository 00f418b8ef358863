"""The contract of what reads texts for a diffusion model: ids to states, and one vector for all of a text."""

import abc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int


class TextStates(NamedTuple):
    """What an encoder made of texts: a state a token, one vector a text, and which tokens there are (None: all)."""

    states: Float[Array, "B T D"]
    pooled: Float[Array, "B P"] | None
    segment_ids: Int[Array, "B T"] | None = None

    def of_nothing(self) -> "TextStates":
        """Returns zeros of the same shapes, of which the first state is seen: no text, for guidance."""
        states, pooled, segments = jax.tree.map(jnp.zeros_like, self)
        return TextStates(states, pooled, None if segments is None else segments.at[:, 0].set(1))


class TextWidths(NamedTuple):
    """Numbers of a token's state and of a text's one vector; `pooled` None of a network that reads no such vector."""

    states: int
    pooled: int | None


class TextEncoder(kn.Module):
    """Reads texts of at most `length` ids; a slot of diffusion models. A row depends on its own text alone."""

    class Config(kn.Module.Config):
        length: kn.Size = kn.REQUIRED
        vocab_size: kn.Size = kn.REQUIRED

    @classmethod
    @abc.abstractmethod
    def widths(cls, cfg: Any) -> TextWidths:
        """Returns the widths of what an encoder with this config makes."""

    @abc.abstractmethod
    def forward(self, ids: Int[Array, "B T"]) -> TextStates:
        """Returns what it makes of texts, in the compute dtype; ids are -1 past a text's end."""

    @kn.nowrap
    @abc.abstractmethod
    def flops_per_text(self) -> float:
        """Returns forward matmul FLOPs of a text of `length` ids."""


def tokens_of(ids: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Returns 1 where a text has an id, and at its first place, which a text without any has too; else 0."""
    return ((ids >= 0) | (jnp.arange(ids.shape[1])[None] == 0)).astype(jnp.int32)


def mean_of(states: Float[Array, "B T D"], segment_ids: Int[Array, "B T"]) -> Float[Array, "B D"]:
    """Returns the mean of a text's states, in their dtype."""
    weights = segment_ids.astype(jnp.float32)[..., None]
    mean = jnp.sum(states.astype(jnp.float32) * weights, axis=1) / jnp.sum(weights, axis=1)
    return mean.astype(states.dtype)
