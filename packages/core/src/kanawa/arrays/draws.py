"""Draws from logits that any two programs make alike: the noise of a token follows from a key and its id."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt


def noisy_argmax(logits: Float[Array, "*rows V"], keys: Int[Array, "*rows"]) -> Int[Array, "*rows"]:
    """Returns argmax(logits + Gumbel noise): a draw from softmax(logits), int32; -inf is never drawn.

    The noise depends on the row's key and the token's id only. Programs whose logits differ in their last bits draw
    the same tokens but for near ties, where drawing by the running sum of a vocabulary would differ often. `logits` are
    fp32, `keys` any int32 numbers. Source: Gumbel 1954; Maddison, Tarlow and Minka 2014 (arXiv:1411.0030).
    """
    return jnp.argmax(logits + gumbel(keys, logits.shape[-1]), axis=-1).astype(jnp.int32)


def gumbel(keys: Int[Array, "*rows"], count: int) -> Float[Array, "*rows N"]:
    """Returns `count` numbers of the standard Gumbel distribution a key, fp32, hashed from (key, index)."""
    key = jax.lax.bitcast_convert_type(keys, jnp.uint32)[..., None]
    index = jnp.arange(count, dtype=jnp.uint32).reshape(*(1,) * keys.ndim, count)
    bits = _mixed(_mixed(key * jnp.uint32(0x9E3779B1) + jnp.uint32(1)) ^ (index * jnp.uint32(0x85EBCA77)))
    bits = _mixed(bits + key)
    # -log(1 - x) is exponential, and exact where x is small: there lie the winners of a large vocabulary.
    uniform = (bits.astype(jnp.float32) + 0.5) * jnp.float32(2.0**-32)
    return -jnp.log(-jnp.log1p(-uniform))


def _mixed(x: UInt[Array, "..."]) -> UInt[Array, "..."]:
    """Returns a bijective hash of each number (the finaliser of MurmurHash3, by Austin Appleby)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
