"""The losses that clients name: of each target's log-probability and what they send beside it, summed over tokens."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

Arrays = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Loss:
    """A loss a token: `value(logprobs, inputs, options)`, all fp32 [rows, length] but the options, which are scalars.

    `inputs` are what each row needs beside its targets, `options` the defaults of its config.
    """

    inputs: tuple[str, ...]
    options: Mapping[str, float]
    value: Callable[[jax.Array, Arrays, Arrays], jax.Array]


def cross_entropy(logprobs: jax.Array, inputs: Arrays, options: Arrays) -> jax.Array:
    """Returns -log p, weighted."""
    del options
    return -logprobs * inputs["weights"]


def importance_sampling(logprobs: jax.Array, inputs: Arrays, options: Arrays) -> jax.Array:
    """Returns -r A with r = exp(new - sampled): the policy gradient of tokens that another policy drew."""
    del options
    return -jnp.exp(logprobs - inputs["logprobs"]) * inputs["advantages"]


def ppo(logprobs: jax.Array, inputs: Arrays, options: Arrays) -> jax.Array:
    """Returns -min(r A, clip(r) A) (Schulman et al. 2017, arXiv:1707.06347, equation 7)."""
    ratio = jnp.exp(logprobs - inputs["logprobs"])
    clipped = jnp.clip(ratio, options["clip_low_threshold"], options["clip_high_threshold"])
    return -jnp.minimum(ratio * inputs["advantages"], clipped * inputs["advantages"])


def cispo(logprobs: jax.Array, inputs: Arrays, options: Arrays) -> jax.Array:
    """Returns -clip(r) A log p, the clipped ratio a constant (MiniMax-M1, arXiv:2506.13585, equation 4)."""
    ratio = jnp.exp(jax.lax.stop_gradient(logprobs) - inputs["logprobs"])
    clipped = jnp.clip(ratio, options["clip_low_threshold"], options["clip_high_threshold"])
    return -clipped * inputs["advantages"] * logprobs


def dro(logprobs: jax.Array, inputs: Arrays, options: Arrays) -> jax.Array:
    """Returns -(A log p - beta / 2 (log p - log p_sampled)^2) (Richemond et al. 2024, arXiv:2405.19107)."""
    gap = logprobs - inputs["logprobs"]
    return -(logprobs * inputs["advantages"] - 0.5 * options["beta"] * gap * gap)


_ROLLOUT, _CLIP = ("logprobs", "advantages"), {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
LOSSES = {
    "cross_entropy": Loss(("weights",), {}, cross_entropy),
    "importance_sampling": Loss(_ROLLOUT, {}, importance_sampling),
    "ppo": Loss(_ROLLOUT, _CLIP, ppo),
    "cispo": Loss(_ROLLOUT, _CLIP, cispo),
    "dro": Loss(_ROLLOUT, {"beta": 0.05}, dro),
}
