"""Policy-gradient losses of tokens that the policy sampled, and their aggregation."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Sums = tuple[Float[Array, ""], Float[Array, ""]]


def clipped_surrogate(
    logprobs: Float[Array, "..."],
    old_logprobs: Float[Array, "..."],
    advantages: Float[Array, "..."],
    clip_low: float,
    clip_high: float,
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Returns -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with r = exp(new - old), and 1 where the clip holds.

    PPO (Schulman et al. 2017, arXiv:1707.06347, equation 7); separate bounds as in DAPO (arXiv:2503.14476). fp32.
    """
    ratio = jnp.exp(logprobs - old_logprobs)
    free, bound = ratio * advantages, jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high) * advantages
    return -jnp.minimum(free, bound), (bound < free).astype(jnp.float32)


def token_ratio(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    advantages: Float[Array, "B T"],
    weights: Float[Array, "B T"],
    clip_low: float,
    clip_high: float,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Returns the clipped surrogate of each token by its own ratio: PPO's, GRPO's and DAPO's objective."""
    del weights
    return clipped_surrogate(logprobs, old_logprobs, advantages, clip_low, clip_high)


def sequence_ratio(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    advantages: Float[Array, "B T"],
    weights: Float[Array, "B T"],
    clip_low: float,
    clip_high: float,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Returns the clipped surrogate of each token by its sequence's ratio, to the power of one over its length.

    s = exp(mean over drawn tokens of new - old), through which the gradient goes (GSPO, arXiv:2507.18071, equations 5
    to 7). With `per_sequence` and one advantage a row it is the paper's objective.
    """
    counts = jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), 1.0)
    shift = jnp.sum((logprobs - old_logprobs) * weights, axis=1, keepdims=True) / counts
    shifts = jnp.broadcast_to(shift, logprobs.shape)
    return clipped_surrogate(shifts, jnp.zeros_like(shifts), advantages, clip_low, clip_high)


def clipped_weight(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    advantages: Float[Array, "B T"],
    weights: Float[Array, "B T"],
    clip_low: float,
    clip_high: float,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Returns -w A log p with the constant w = clip(r, 1 - clip_low, 1 + clip_high), and 1 where the clip holds.

    CISPO (MiniMax-M1, arXiv:2506.13585, equations 4 and 5): no token loses its gradient, as it does in PPO's clip.
    """
    del weights
    ratio = jnp.exp(jax.lax.stop_gradient(logprobs) - old_logprobs)
    bound = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    return -bound * advantages * logprobs, (bound != ratio).astype(jnp.float32)


def k3_divergence(logprobs: Float[Array, "..."], reference: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns an estimate of KL(policy || reference) from sampled tokens: exp(d) - d - 1, d = reference - new.

    Never negative, and unbiased in value (Schulman 2020, joschu.net/blog/kl-approx.html; DeepSeekMath, equation 4).
    """
    gap = reference - logprobs
    return jnp.expm1(gap) - gap


def truncated_importance(
    logprobs: Float[Array, "..."], sampled: Float[Array, "..."], limit: float
) -> Float[Array, "..."]:
    """Returns min(exp(new - sampled), limit), a constant: the weight of a token sampled by another program (TIS).

    A sampler in lower precision draws from a slightly different distribution; the bound limits the variance.
    """
    return jnp.minimum(jnp.exp(jax.lax.stop_gradient(logprobs) - sampled), limit)


def per_sequence(values: Float[Array, "B T"], weights: Float[Array, "B T"]) -> Sums:
    """Returns (sum over rows of their means over sampled tokens, rows), as in GRPO (DeepSeekMath, arXiv:2402.03300)."""
    counts = jnp.sum(weights, axis=1)
    means = jnp.sum(values * weights, axis=1) / jnp.maximum(counts, 1.0)
    return jnp.sum(means), jnp.sum((counts > 0).astype(jnp.float32))


def per_token(values: Float[Array, "B T"], weights: Float[Array, "B T"]) -> Sums:
    """Returns (sum over sampled tokens, tokens): long rows count for more (DAPO, arXiv:2503.14476, section 3.3)."""
    return jnp.sum(values * weights), jnp.sum(weights)


def per_row(values: Float[Array, "B T"], weights: Float[Array, "B T"]) -> Sums:
    """Returns (sum over sampled tokens, rows times their length): Dr. GRPO's constant (arXiv:2503.20783, section 3.2).

    Divided by its own length, a long wrong answer would cost less than a short one.
    """
    rows = jnp.sum(jnp.any(weights > 0, axis=1).astype(jnp.float32))
    return jnp.sum(values * weights), rows * weights.shape[1]
