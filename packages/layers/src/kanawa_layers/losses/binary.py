"""Losses of independent binary labels from logits: cross entropy and focal loss."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num


def binary_cross_entropy(
    logits: Float[Array, "..."], targets: Num[Array, "..."], *, label_smoothing: float = 0.0
) -> Float[Array, "..."]:
    """Returns -log p of each target in [0, 1] under sigmoid(logits), fp32, without overflow for any logit.

    `label_smoothing` s moves targets to target * (1 - s) + s / 2.
    """
    logits = logits.astype(jnp.float32)
    wanted = targets.astype(jnp.float32) * (1.0 - label_smoothing) + 0.5 * label_smoothing
    # -log sigmoid(x) is softplus(x) - x and -log(1 - sigmoid(x)) is softplus(x), so targets mix the two linearly.
    return jax.nn.softplus(logits) - wanted * logits


def focal(
    logits: Float[Array, "..."], targets: Num[Array, "..."], *, gamma: float = 2.0, alpha: float | None = 0.25
) -> Float[Array, "..."]:
    """Returns alpha_t * (1 - p_t)^gamma * -log p_t of 0/1 targets under sigmoid(logits), fp32.

    It down-weights easy examples (Lin et al. 2017, arXiv:1708.02002). `alpha` is the weight of targets that are 1, and
    1 - alpha of the others; None weighs both alike.
    """
    wanted = targets.astype(jnp.float32)
    loss = binary_cross_entropy(logits, wanted)
    # 1 - p_t from a log-probability, so that its gradient stays finite where p_t is 1.
    missed = jnp.exp(gamma * jax.nn.log_sigmoid(jnp.where(wanted > 0.5, -1.0, 1.0) * logits.astype(jnp.float32)))
    balance = 1.0 if alpha is None else alpha * wanted + (1.0 - alpha) * (1.0 - wanted)
    return balance * missed * loss
