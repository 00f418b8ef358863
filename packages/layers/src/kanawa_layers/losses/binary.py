"""Binary cross entropy from logits, for independent labels."""

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
