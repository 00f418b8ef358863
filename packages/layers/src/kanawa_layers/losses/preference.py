"""Losses of preferences from log-probabilities of whole completions: pure functions, fp32, one value a pair.

A `difference` is that of the better completion less that of the worse one.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

#: The largest mean log-probability whose odds are finite in fp32.
_MOST_LOGPROB = -1e-7


def segment_sums(values: Float[Array, "B T"], segment_ids: Int[Array, "B T"], num_segments: int) -> Float[Array, "B S"]:
    """Returns the sum of each packed segment, segment s at s - 1, fp32; padding, segment 0, counts nowhere."""
    # Compared and summed, not scattered: XLA fuses it, it is exact, and it shards along the rows and their length.
    numbers = jnp.arange(1, num_segments + 1, dtype=segment_ids.dtype)
    mine = segment_ids[:, :, None] == numbers[None, None]
    return jnp.sum(jnp.where(mine, values.astype(jnp.float32)[:, :, None], 0.0), axis=1)


def sigmoid(difference: Float[Array, "*pairs"], beta: float = 1.0, smoothing: float = 0.0) -> Float[Array, "*pairs"]:
    """Returns -log sigmoid(beta difference): DPO (arXiv:2305.18290, equation 7), and Bradley-Terry.

    With `smoothing` e, labels are wrong that often: (1 - e) f(x) + e f(-x) (Mitchell 2023, conservative DPO).
    """
    return _smoothed(lambda x: -jax.nn.log_sigmoid(beta * x), difference, smoothing)


def hinge(difference: Float[Array, "*pairs"], beta: float = 1.0, smoothing: float = 0.0) -> Float[Array, "*pairs"]:
    """Returns max(0, 1 - beta difference) (SLiC, arXiv:2305.10425, equation 1, on rewards); `smoothing` as above."""
    return _smoothed(lambda x: jax.nn.relu(1.0 - beta * x), difference, smoothing)


def squared(difference: Float[Array, "*pairs"], beta: float = 1.0, smoothing: float = 0.0) -> Float[Array, "*pairs"]:
    """Returns (difference - 1 / (2 beta))^2, IPO (arXiv:2310.12036, equation 17); `smoothing` as above."""
    return _smoothed(lambda x: jnp.square(x - 0.5 / beta), difference, smoothing)


def _smoothed(loss: Callable[[jax.Array], jax.Array], difference: jax.Array, smoothing: float) -> jax.Array:
    return loss(difference) if not smoothing else (1.0 - smoothing) * loss(difference) + smoothing * loss(-difference)


def log_odds(mean_logprobs: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns log(p / (1 - p)) of p = exp(mean log-probability) (ORPO, arXiv:2403.07691, equation 4)."""
    bounded = jnp.minimum(mean_logprobs, _MOST_LOGPROB)
    return bounded - jnp.log(-jnp.expm1(bounded))


def kto(
    rewards: Float[Array, "..."],
    divergence: Float[Array, ""],
    labels: Float[Array, "..."],
    good_weight: float = 1.0,
    bad_weight: float = 1.0,
) -> Float[Array, "..."]:
    """Returns w (1 - sigmoid(reward - z)) where the label is 1, and w' (1 - sigmoid(z - reward)) where it is -1.

    KTO (arXiv:2402.01306, equation 8); `divergence` is z, beta times the policy's KL from its reference.
    """
    loss = jax.nn.sigmoid(-jnp.sign(labels) * (rewards - divergence))
    return jnp.where(labels > 0, good_weight, bad_weight) * loss
