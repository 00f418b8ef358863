"""Draws that any two programs make alike: their noise follows from a key."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt


def keyed_draw(weights: Float[Array, "*rows V"], keys: Int[Array, "*rows"]) -> Int[Array, "*rows"]:
    """Returns an index in proportion to the weights of its row, int32; one of weight 0 is never drawn.

    Weights are fp32 and at least 0, keys any int32 numbers. First a block of about sqrt(V) indices is drawn by the
    sums of blocks, then an index of the block, each as the first of exponential clocks to ring, whose rates are the
    weights. Programs whose weights differ in their last bits draw the same but for near ties, where drawing by a
    running sum would differ often. Source: Maddison, Tarlow and Minka 2014 (arXiv:1411.0030), in logarithms.
    """
    vocab = weights.shape[-1]
    width = 1 << -(-(vocab - 1).bit_length() // 2)
    count = -(-vocab // width)
    blocks = jnp.pad(weights, ((0, 0),) * keys.ndim + ((0, count * width - vocab),)).reshape(*keys.shape, count, width)
    block = jnp.argmax(jnp.sum(blocks, axis=-1) / exponential(keys, 0, count), axis=-1)
    within = jnp.take_along_axis(blocks, block[..., None, None], axis=-2)[..., 0, :]
    return (block * width + jnp.argmax(within / exponential(keys, count, width), axis=-1)).astype(jnp.int32)


def exponential(keys: Int[Array, "*rows"], start: int, count: int) -> Float[Array, "*rows N"]:
    """Returns the numbers `start` to `start + count` of each key: of the exponential distribution of mean 1, fp32."""
    key = jax.lax.bitcast_convert_type(keys, jnp.uint32)[..., None]
    index = jnp.arange(start, start + count, dtype=jnp.uint32).reshape(*(1,) * keys.ndim, count)
    bits = _mixed(_mixed(key * jnp.uint32(0x9E3779B1) + jnp.uint32(1)) ^ (index * jnp.uint32(0x85EBCA77)))
    bits = _mixed(bits + key)
    # -log(1 - x) is exact where x is small: there lie the first to ring. 2^32 - 1 is rounded up, to x = 1.
    return -jnp.log1p(-jnp.minimum((bits.astype(jnp.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24))


def _mixed(x: UInt[Array, "..."]) -> UInt[Array, "..."]:
    """Returns a bijective hash of each number (the finaliser of MurmurHash3, by Austin Appleby)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
