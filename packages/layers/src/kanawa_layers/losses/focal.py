"""Focal loss (Lin et al. 2017, arXiv:1708.02002), which down-weights easy examples."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from kanawa_layers.losses.binary import binary_cross_entropy


def focal(
    logits: Float[Array, "..."], targets: Num[Array, "..."], *, gamma: float = 2.0, alpha: float | None = 0.25
) -> Float[Array, "..."]:
    """Returns alpha_t * (1 - p_t)^gamma * -log p_t of 0/1 targets under sigmoid(logits), fp32.

    `alpha` is the weight of targets that are 1, and 1 - alpha of the others; None weighs both alike.
    """
    wanted = targets.astype(jnp.float32)
    loss = binary_cross_entropy(logits, wanted)
    # 1 - p_t from a log-probability, so that its gradient stays finite where p_t is 1.
    missed = jnp.exp(gamma * jax.nn.log_sigmoid(jnp.where(wanted > 0.5, -1.0, 1.0) * logits.astype(jnp.float32)))
    balance = 1.0 if alpha is None else alpha * wanted + (1.0 - alpha) * (1.0 - wanted)
    return balance * missed * loss
