"""Poolings: one vector for a whole sequence, from its valid positions only."""

import abc

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Bool, Float


class Pooling(kn.Module):
    """Reduces [batch, length, embed] to [batch, embed]; positions that aren't valid don't count."""

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT

    @abc.abstractmethod
    def forward(self, x: Float[Array, "B T E"], valid: Bool[Array, "B T"] | None = None) -> Float[Array, "B E"]:
        """Returns the pooled vectors; `valid` None counts every position."""


class MeanPooling(Pooling):
    """The mean, summed in fp32; zeros for a row without valid positions."""

    def forward(self, x: Float[Array, "B T E"], valid: Bool[Array, "B T"] | None = None) -> Float[Array, "B E"]:
        """Returns the mean of valid positions."""
        weight = _valid(x, valid).astype(jnp.float32)[..., None]
        total = jnp.sum(x.astype(jnp.float32) * weight, axis=1)
        return (total / jnp.maximum(jnp.sum(weight, axis=1), 1.0)).astype(x.dtype)


class MaxPooling(Pooling):
    """The largest value of each channel; the lowest finite number for a row without valid positions."""

    def forward(self, x: Float[Array, "B T E"], valid: Bool[Array, "B T"] | None = None) -> Float[Array, "B E"]:
        """Returns the maximum over valid positions."""
        # Finite, so that a row without valid positions has no infinities.
        lowest = jnp.asarray(jnp.finfo(x.dtype).min, x.dtype)
        return jnp.max(jnp.where(_valid(x, valid)[..., None], x, lowest), axis=1)


class FirstPooling(Pooling):
    """The first valid position, such as BERT's class token, or the row's first without valid ones."""

    def forward(self, x: Float[Array, "B T E"], valid: Bool[Array, "B T"] | None = None) -> Float[Array, "B E"]:
        """Returns the first valid vector."""
        # argmax of booleans is the first True, or 0 without any.
        return _at(x, jnp.argmax(_valid(x, valid), axis=1))


class LastPooling(Pooling):
    """The last valid position, which in a causal model has seen all, or the row's last without valid ones."""

    def forward(self, x: Float[Array, "B T E"], valid: Bool[Array, "B T"] | None = None) -> Float[Array, "B E"]:
        """Returns the last valid vector."""
        return _at(x, x.shape[1] - 1 - jnp.argmax(_valid(x, valid)[:, ::-1], axis=1))


def _valid(x: Float[Array, "B T E"], valid: Bool[Array, "B T"] | None) -> Bool[Array, "B T"]:
    return jnp.ones(x.shape[:2], bool) if valid is None else valid


def _at(x: Float[Array, "B T E"], index: Array) -> Float[Array, "B E"]:
    return jnp.take_along_axis(x, index[:, None, None], axis=1)[:, 0]
