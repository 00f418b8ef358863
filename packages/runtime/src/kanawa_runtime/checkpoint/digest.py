"""A digest of an array's bits that doesn't depend on how the array is sharded.

Each 32-bit word is mixed with its global position and the results are added modulo 2^32, twice with
different seeds. Addition commutes exactly, so devices digest their own shards in place and the sum
is the same on any mesh: no copy to the host, and a checkpoint saved on eight devices is verified on
one. For a given position the mixing is a bijection of the word, so a change confined to one word
always shows; any other shows but for odds of 2^-64.

The mixing function is MurmurHash3's finaliser (Austin Appleby, public domain). It guards against
accidents, not against an adversary.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

#: Written into manifests; a change of the function needs a new name.
ALGORITHM = "position-mix32x2"

_SEEDS = (0x9E3779B9, 0x7F4A7C15)
#: Odd multipliers that fold a multi-dimensional position into 32 bits; arrays may exceed 2^32 words.
_FOLDS = ((0x01000193, 0x85EBCA77), (0xC2B2AE3D, 0x27D4EB2F))


def _mix(value: jax.Array) -> jax.Array:
    """MurmurHash3's 32-bit finaliser on a uint32 array."""
    value = (value ^ (value >> 16)) * np.uint32(0x85EBCA6B)
    value = (value ^ (value >> 13)) * np.uint32(0xC2B2AE35)
    return value ^ (value >> 16)


def _positions(shape: tuple[int, ...], lane: int) -> jax.Array:
    """Returns a uint32 array that numbers the elements of `shape`, in its own way for each lane."""
    total = jnp.zeros((), jnp.uint32)
    scale = 1
    for axis in reversed(range(len(shape))):
        total = total + jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * np.uint32(scale)
        # Odd, so that the strides of large arrays never vanish modulo 2^32.
        scale = (scale * shape[axis] * _FOLDS[lane][0] + _FOLDS[lane][1]) % 2**32 | 1
    return total


def _words(array: jax.Array) -> jax.Array:
    """Returns the array's bits as uint32: one word an element, or two in a last dimension for 8-byte elements."""
    # A bool has no bits of its own to cast: XLA keeps it as a byte that is 0 or 1.
    if array.dtype == jnp.bool_:
        return array.astype(jnp.uint32)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = jnp.stack([array.real, array.imag], axis=-1)
    limits = jnp.finfo if jnp.issubdtype(array.dtype, jnp.floating) else jnp.iinfo
    unsigned = jnp.dtype(f"uint{min(limits(array.dtype).bits, 32)}")
    return jax.lax.bitcast_convert_type(array, unsigned).astype(jnp.uint32)


def array_words_digest(array: jax.Array) -> jax.Array:
    """Returns uint32[2]: one sum per lane. Traceable."""
    words = _words(array)
    words = words.reshape(1) if words.ndim == 0 else words
    lanes = [
        jnp.sum(_mix(words ^ _mix(_positions(words.shape, lane) + np.uint32(seed))), dtype=jnp.uint32)
        for lane, seed in enumerate(_SEEDS)
    ]
    return jnp.stack(lanes)


@functools.lru_cache(maxsize=64)
def _compiled(result: Sharding | None) -> Any:
    return jax.jit(array_words_digest, out_shardings=result) if result is not None else jax.jit(array_words_digest)


def start_digest(array: jax.Array) -> jax.Array:
    """Returns the digest, uint32[2], without waiting for it; every process that holds a part must call."""
    sharding = array.sharding
    if not isinstance(sharding, NamedSharding):
        local: jax.Array = _compiled(None)(array)
        return local
    # Optimizer state that waits in host memory: XLA computes on devices only.
    if sharding.memory_kind not in (None, "device"):
        sharding = sharding.with_memory_kind("device")
        array = jax.device_put(array, sharding)
    shared: jax.Array = _compiled(NamedSharding(sharding.mesh, PartitionSpec()))(array)
    return shared


def digest_text(digest: Any) -> str:
    """Returns a digest, uint32[2], as sixteen hexadecimal digits; waits for it."""
    first, second = (int(word) for word in np.asarray(digest))
    return f"{first:08x}{second:08x}"
