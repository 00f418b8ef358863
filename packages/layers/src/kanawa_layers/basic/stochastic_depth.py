"""Stochastic depth (Huang et al. 2016, arXiv:1603.09382): whole residual branches are dropped, row by row."""

import kanawa as kn
from jaxtyping import Array, Float

from kanawa_layers.basic.dropout import RandomDrop


class StochasticDepth(RandomDrop):
    """Zeroes a whole row of a branch with probability `rate` in training and scales the others by 1 / (1 - rate)."""

    @kn.nowrap
    def parts(self, x: Float[Array, "B ..."]) -> tuple[int, ...]:
        """Returns [B, 1, ...]: each row on its own."""
        return (x.shape[0],) + (1,) * (x.ndim - 1)
