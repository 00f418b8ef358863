"""Log-probabilities of drawn tokens, and the draws again."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from kanawa.arrays.draws import keyed_draw
from kanawa.kernels.matmul import matmul

from kanawa_layers.models.target_nll import nll_gradients

#: Logits that exist at once, in numbers: a row of them for each token of the chunk.
_MAX_LOGITS = 1 << 24


# jax's own, not kn.custom_vjp: it takes all it needs as arguments, and the choice of its kernel is still recorded.
@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def repeated_draws(
    hidden: Float[Array, "B T E"],
    weight: Float[Array, "..."],
    targets: Int[Array, "B T"],
    keys: Int[Array, "B T"],
    tied: bool,
    logit_cap: float | None,
) -> tuple[Float[Array, "B T"], Int[Array, "B T"]]:
    """Returns log p of each target, fp32, and the token that the key's noise draws at each place.

    Chunks of the length are computed one after another, so that logits never exist as a whole.
    """
    rows, length = targets.shape
    vocab = weight.shape[0] if tied else weight.shape[1]
    chunk = _largest_divisor(length, max(1, _MAX_LOGITS // (rows * vocab)))

    def chunked(x: Array) -> Array:
        return jnp.moveaxis(x.reshape(rows, length // chunk, chunk, *x.shape[2:]), 1, 0)

    def one(_: None, part: tuple[Array, Array, Array]) -> tuple[None, tuple[Array, Array]]:
        states, wanted, key = part
        logits = matmul(states, weight, outputs_first=tied, dtype=jnp.float32, logits=True)
        logits = logits if logit_cap is None else logit_cap * jnp.tanh(logits / logit_cap)
        top = jnp.max(logits, axis=-1)
        shares = jnp.exp(logits - top[..., None])
        own = jnp.take_along_axis(logits, wanted[..., None], axis=-1)[..., 0]
        return None, (own - top - jnp.log(jnp.sum(shares, axis=-1)), keyed_draw(shares, key))

    _, parts = jax.lax.scan(one, None, (chunked(hidden), chunked(targets), chunked(keys)))
    logprobs, choices = (jnp.moveaxis(part, 0, 1).reshape(rows, length) for part in parts)
    return logprobs, choices


def _largest_divisor(number: int, limit: int) -> int:
    """Returns the largest divisor of a number that is at most `limit`."""
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)


def _forward(
    hidden: Array, weight: Array, targets: Array, keys: Array, tied: bool, logit_cap: float | None
) -> tuple[tuple[Array, Array], Any]:
    return repeated_draws(hidden, weight, targets, keys, tied, logit_cap), (hidden, weight, targets)


def _backward(tied: bool, logit_cap: float | None, saved: Any, cotangents: tuple[Array, Any]) -> tuple[Any, ...]:
    hidden, weight, targets = saved
    return (*nll_gradients(hidden, weight, targets, -cotangents[0], tied, logit_cap), None, None)


repeated_draws.defvjp(_forward, _backward)
