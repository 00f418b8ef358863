"""Cross entropy as a sum and token by token, for the price of the sum."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from kanawa.kernels.softmax_cross_entropy import softmax_cross_entropy


class CrossEntropySums(NamedTuple):
    """What `softmax_cross_entropy` returns, and each token's loss, fp32, unweighted and without a gradient."""

    loss: jax.Array
    weight: jax.Array
    extra: dict[str, jax.Array]
    token_losses: Float[Array, "B T"]


def cross_entropy_by_token(
    hidden: Float[Array, "B T E"],
    weight: Float[Array, "..."],
    targets: Int[Array, "B T"],
    loss_weights: Float[Array, "B T"],
    **options: Any,
) -> CrossEntropySums:
    """Returns the sums of `softmax_cross_entropy` with these options, and every token's loss.

    The loss sum is linear in the weights, so a token's loss is the gradient by its weight. All gradients of the sum are
    taken in the forward pass, for a cotangent of 1, and the backward pass scales them: no matmul is done twice.
    """
    out = _by_token(tuple(sorted(options.items())), hidden, weight, targets, loss_weights)
    return out._replace(token_losses=jax.lax.stop_gradient(out.token_losses))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _by_token(
    options: tuple[tuple[str, Any], ...], hidden: jax.Array, weight: jax.Array, targets: jax.Array, weights: jax.Array
) -> CrossEntropySums:
    return _forward(options, hidden, weight, targets, weights)[0]


def _forward(
    options: tuple[tuple[str, Any], ...], hidden: jax.Array, weight: jax.Array, targets: jax.Array, weights: jax.Array
) -> tuple[CrossEntropySums, Any]:
    def total(h: jax.Array, w: jax.Array, lw: jax.Array) -> tuple[jax.Array, Any]:
        loss, count, extra = softmax_cross_entropy(h, w, targets, lw, **dict(options))
        return loss, (count, extra)

    loss, pull, (count, extra) = jax.vjp(total, hidden, weight, weights, has_aux=True)
    gradients = pull(jnp.ones_like(loss))
    return CrossEntropySums(loss, count, extra, gradients[2].astype(jnp.float32)), gradients


def _backward(options: tuple[tuple[str, Any], ...], gradients: Any, cotangents: CrossEntropySums) -> tuple[Any, ...]:
    del options
    by_hidden, by_weight, by_weights = (x * cotangents.loss.astype(x.dtype) for x in gradients)
    return by_hidden, by_weight, None, by_weights + cotangents.weight.astype(by_weights.dtype)


_by_token.defvjp(_forward, _backward)
