"""Logits, and the losses of each token from them, in fp32: what both kernels compute."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kanawa.kernels.accumulate import wide
from kanawa.kernels.matmul import matmul
from kanawa.kernels.softmax_cross_entropy.problem import CrossEntropyProblem


class TokenLosses(NamedTuple):
    """Per token, fp32: what is minimised, its parts, and whether the argmax was right."""

    loss: jax.Array
    nll: jax.Array
    z_loss: jax.Array
    correct: jax.Array
    log_sum_exp: jax.Array


class Sums(NamedTuple):
    """Weighted sums over tokens, fp32 scalars."""

    loss: jax.Array
    weight: jax.Array
    nll: jax.Array
    z_loss: jax.Array
    correct: jax.Array


def project(problem: CrossEntropyProblem, hidden: jax.Array, weight: jax.Array) -> jax.Array:
    """Returns capped logits [..., vocab] in fp32."""
    logits = _logits(problem.tied, hidden, weight)
    if problem.logit_cap is not None:
        logits = problem.logit_cap * jnp.tanh(logits / problem.logit_cap)
    return logits


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _logits(tied: bool, hidden: jax.Array, weight: jax.Array) -> jax.Array:
    """Returns hidden [..., width] times the weight, fp32 [..., vocab]."""
    return matmul(hidden, weight, outputs_first=tied, dtype=wide(hidden.dtype), logits=True, own_gradients=False)


def _logits_forward(tied: bool, hidden: jax.Array, weight: jax.Array) -> tuple[jax.Array, Any]:
    return _logits(tied, hidden, weight), (hidden, weight)


def _logits_backward(tied: bool, saved: tuple[jax.Array, jax.Array], dlogits: jax.Array) -> tuple[jax.Array, ...]:
    hidden, weight = saved
    dhidden, dweight = logit_gradients(tied, hidden, weight, dlogits)
    return dhidden.astype(hidden.dtype), dweight.astype(weight.dtype)


def logit_gradients(
    tied: bool, hidden: jax.Array, weight: jax.Array, dlogits: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the cotangents of hidden and weight, accumulated and returned in fp32, from the logits' [..., vocab]."""
    # JAX's own rule multiplies with the cotangent first. A compiler may then transpose it to suit its matmuls, a third
    # array of logits at the peak of a step; here it transposes the hidden states.
    pair = (dlogits, hidden) if tied else (hidden, dlogits)
    dtype = wide(hidden.dtype)
    dhidden = matmul(dlogits, weight, outputs_first=not tied, dtype=dtype, logits=True, own_gradients=False)
    return dhidden, matmul(*pair, hidden.ndim - 1, inner_first=True, dtype=dtype, logits=True, own_gradients=False)


_logits.defvjp(_logits_forward, _logits_backward)


def token_losses(
    problem: CrossEntropyProblem, logits: jax.Array, targets: jax.Array, *, gathered: bool = False
) -> TokenLosses:
    """Returns each token's losses from logits [..., vocab] and targets [...].

    `gathered` picks the targets' logits by index, for logits whose vocabulary is whole.
    """
    # Subtracted, so that exp can't overflow. It cancels out, so no gradient goes through it; pmax has none.
    top = jax.lax.stop_gradient(jnp.max(logits, axis=-1))
    if problem.vocab_axes:
        top = jax.lax.pmax(top, problem.vocab_axes)
    log_sum_exp = top + jnp.log(_over_vocab(problem, jnp.exp(logits - top[..., None])))
    if gathered:
        chosen = _gathered(problem, logits, targets)
    else:
        # A sum over a comparison, not a gather: it stays in place where the vocabulary is split.
        chosen = _over_vocab(problem, jnp.where(is_target(problem, logits, targets), logits, 0.0))
    nll = log_sum_exp - chosen
    loss = nll
    if problem.label_smoothing:
        spread = log_sum_exp - _over_vocab(problem, logits) / whole_vocab(problem)
        loss = (1 - problem.label_smoothing) * nll + problem.label_smoothing * spread
    z_loss = jnp.zeros_like(nll)
    if problem.z_loss:
        z_loss = problem.z_loss * jnp.square(log_sum_exp)
        loss = loss + z_loss
    # The target's own logit is the maximum: no argmax, which across shards of the vocabulary would need indices.
    return TokenLosses(loss, nll, z_loss, (chosen >= top).astype(logits.dtype), log_sum_exp)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gathered(problem: CrossEntropyProblem, logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns the target's logit of each token; some other one of a target that is out of range."""
    # Clipped: such tokens have weight 0, which would not undo a NaN.
    return jnp.take_along_axis(logits, targets[..., None], axis=-1, mode="clip")[..., 0]


def _gathered_forward(
    problem: CrossEntropyProblem, logits: jax.Array, targets: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _gathered(problem, logits, targets), targets


def _gathered_backward(
    problem: CrossEntropyProblem, targets: jax.Array, cotangent: jax.Array
) -> tuple[jax.Array, np.ndarray]:
    # A comparison again, which joins the rest of the logits' gradient in one pass, where a scatter takes its own.
    index = jax.lax.broadcasted_iota(targets.dtype, (*targets.shape, problem.vocab), targets.ndim)
    dlogits = jnp.where(index == targets[..., None], cotangent[..., None], jnp.zeros((), cotangent.dtype))
    return dlogits, np.zeros(targets.shape, jax.dtypes.float0)


_gathered.defvjp(_gathered_forward, _gathered_backward)


def weighted_sums(losses: TokenLosses, loss_weights: jax.Array) -> Sums:
    """Returns the sums of losses times weights."""
    weights = loss_weights.astype(losses.loss.dtype)
    return Sums(
        loss=jnp.sum(losses.loss * weights),
        weight=jnp.sum(weights),
        nll=jnp.sum(losses.nll * weights),
        z_loss=jnp.sum(losses.z_loss * weights),
        correct=jnp.sum(losses.correct * weights),
    )


def is_target(problem: CrossEntropyProblem, logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns bool [..., vocab], true at each token's target."""
    index = jax.lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1)
    if problem.vocab_axes:
        index = index + (jax.lax.axis_index(problem.vocab_axes) * problem.vocab).astype(index.dtype)
    return index == targets[..., None]


def whole_vocab(problem: CrossEntropyProblem) -> int:
    """Returns the vocabulary over all shards."""
    return problem.vocab * math.prod(jax.lax.axis_size(name) for name in problem.vocab_axes)


def _over_vocab(problem: CrossEntropyProblem, x: jax.Array) -> jax.Array:
    total = jnp.sum(x, axis=-1)
    return jax.lax.psum(total, problem.vocab_axes) if problem.vocab_axes else total
