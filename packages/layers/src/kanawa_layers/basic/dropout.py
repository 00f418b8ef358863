"""Dropout (Srivastava et al. 2014) and stochastic depth (Huang et al. 2016, arXiv:1603.09382)."""

import abc

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float


class RandomDrop(kn.Module):
    """Zeroes parts of an array with probability `rate` in training and scales the rest by 1 / (1 - rate)."""

    class Config(kn.Module.Config):
        rate: kn.Partial = 0.1

    @abc.abstractmethod
    def parts(self, x: Float[Array, "..."]) -> tuple[int, ...]:
        """Returns the mask's shape, which broadcasts to x's."""

    def forward(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns x itself outside of training or at rate 0."""
        rate = self.config.rate
        if not self.train or rate == 0.0:
            return x
        keep = jax.random.bernoulli(self.next_key(), 1.0 - rate, self.parts(x))
        # A `where`, not a multiplication by the mask: 0 * inf is NaN.
        return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))


class Dropout(RandomDrop):
    """Zeroes elements with probability `rate` in training and scales the rest by 1 / (1 - rate)."""

    @kn.nowrap
    def parts(self, x: Float[Array, "..."]) -> tuple[int, ...]:
        """Returns the shape of x: each element on its own."""
        return x.shape


class StochasticDepth(RandomDrop):
    """Zeroes a whole row of a branch with probability `rate` in training and scales the others by 1 / (1 - rate)."""

    @kn.nowrap
    def parts(self, x: Float[Array, "B ..."]) -> tuple[int, ...]:
        """Returns [B, 1, ...]: each row on its own."""
        return (x.shape[0],) + (1,) * (x.ndim - 1)
