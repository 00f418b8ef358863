"""The negative log-likelihood of each target token, and its gradients, without building logits as a whole."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from kanawa.kernels.softmax_cross_entropy import softmax_cross_entropy


# jax's own, not kn.custom_vjp: it takes all it needs as arguments, and the choice of its kernel is still recorded.
@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def target_nll(
    hidden: Float[Array, "B T E"],
    weight: Float[Array, "..."],
    targets: Int[Array, "B T"],
    tied: bool,
    logit_cap: float | None,
) -> Float[Array, "B T"]:
    """Returns -log p of each target, fp32, by any kernel of `softmax_cross_entropy`: logits never exist as a whole.

    That operation returns sums. It is linear in its weights: a token's loss is the gradient by its weight.
    """
    ones = jnp.ones(targets.shape, jnp.float32)
    losses: jax.Array = jax.grad(lambda w: _weighted(hidden, weight, targets, w, tied, logit_cap))(ones)
    return losses


def _weighted(
    hidden: jax.Array, weight: jax.Array, targets: jax.Array, weights: jax.Array, tied: bool, logit_cap: float | None
) -> jax.Array:
    return softmax_cross_entropy(hidden, weight, targets, weights, tied=tied, logit_cap=logit_cap)[0]


def nll_gradients(
    hidden: Float[Array, "B T E"],
    weight: Float[Array, "..."],
    targets: Int[Array, "B T"],
    cotangent: Float[Array, "B T"],
    tied: bool,
    logit_cap: float | None,
) -> tuple[Float[Array, "B T E"], Float[Array, "..."]]:
    """Returns the gradients of sum(cotangent * -log p) by hidden states and weight, in their dtypes."""
    by = jax.grad(_weighted, argnums=(0, 1))
    gradients: tuple[jax.Array, jax.Array] = by(hidden, weight, targets, cotangent, tied, logit_cap)
    return gradients


def _forward(
    hidden: jax.Array, weight: jax.Array, targets: jax.Array, tied: bool, logit_cap: float | None
) -> tuple[jax.Array, Any]:
    return target_nll(hidden, weight, targets, tied, logit_cap), (hidden, weight, targets)


def _backward(tied: bool, logit_cap: float | None, saved: Any, cotangent: jax.Array) -> tuple[Any, ...]:
    hidden, weight, targets = saved
    return (*nll_gradients(hidden, weight, targets, cotangent, tied, logit_cap), None)


target_nll.defvjp(_forward, _backward)
