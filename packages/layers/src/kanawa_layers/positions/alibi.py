"""ALiBi (Press et al. 2021, arXiv:2108.12409): scores fall linearly with distance, at a slope of each head's own."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from kanawa.contracts import Positions


class Alibi(Positions):
    """Adds -slope * |query position - key position| to the logits; no parameters."""

    def bias(
        self, q_positions: Int[Array, "B T"], kv_positions: Int[Array, "B S"], num_heads: int
    ) -> Float[Array, "B H T S"]:
        """Returns the fp32 bias."""
        slopes = self.slopes(num_heads)
        distance = jnp.abs(q_positions[:, :, None] - kv_positions[:, None, :]).astype(jnp.float32)
        return -slopes[None, :, None, None] * distance[:, None]

    def slopes(self, num_heads: int) -> Float[Array, " H"]:
        """Returns the slope of each head, fp32."""
        return jnp.asarray(alibi_slopes(num_heads), jnp.float32)


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Returns 2^(-8 i / n) for i = 1 … n; where n isn't a power of two, odd terms for twice as many heads fill up."""
    # As in the paper's code: 2^(-8 i / n) for 12 heads, say, would be other slopes than those of published models.
    power = 2 ** int(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * i / power) for i in range(1, power + 1)]
    between = [2.0 ** (-4.0 * i / power) for i in range(1, 2 * power, 2)]
    return (*slopes, *between[: num_heads - power])
