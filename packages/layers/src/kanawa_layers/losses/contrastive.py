"""Contrastive losses of paired embeddings: row i of one side belongs to row i of the other, and to no other row."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def softmax_contrastive(
    left: Float[Array, "N D"], right: Float[Array, "N D"], logit_scale: Float[Array, ""] | float
) -> Float[Array, " N"]:
    """Returns each pair's mean of both directions' cross entropy (CLIP, Radford et al. 2021, arXiv:2103.00020).

    Embeddings are normalised to length 1 here, in fp32; `logit_scale` multiplies their cosines (CLIP learns its
    logarithm, and caps the scale at 100).
    """
    logits = logit_scale * _unit(left) @ _unit(right).T
    right_of_left: jax.Array = jnp.diagonal(jax.nn.log_softmax(logits, axis=1))
    left_of_right: jax.Array = jnp.diagonal(jax.nn.log_softmax(logits, axis=0))
    return -0.5 * (right_of_left + left_of_right)


def sigmoid_contrastive(
    left: Float[Array, "N D"],
    right: Float[Array, "N D"],
    logit_scale: Float[Array, ""] | float,
    logit_bias: Float[Array, ""] | float,
) -> Float[Array, " N"]:
    """Returns each left row's summed binary loss against all right rows (SigLIP, Zhai et al. 2023, arXiv:2303.15343).

    Needs no normalisation over the batch; the paper starts at scale 10 and bias -10.
    """
    logits = logit_scale * _unit(left) @ _unit(right).T + logit_bias
    # 1 for the pair, -1 for all others.
    signs = 2.0 * jnp.eye(logits.shape[0]) - 1.0
    return -jnp.sum(jax.nn.log_sigmoid(signs * logits), axis=1)


def _unit(x: Float[Array, "N D"]) -> Float[Array, "N D"]:
    x32 = x.astype(jnp.float32)
    return x32 * jax.lax.rsqrt(jnp.sum(x32 * x32, axis=-1, keepdims=True) + 1e-12)
