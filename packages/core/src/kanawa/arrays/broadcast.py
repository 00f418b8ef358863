"""Explicit broadcasting: implicit rank promotion is an error in our tests, because it hides transposed shapes."""

import jax
import jax.numpy as jnp


def along_last(array: jax.Array, ndim: int) -> jax.Array:
    """Returns `array` with leading axes of size 1, so that it has `ndim` dimensions."""
    return array.reshape((1,) * (ndim - array.ndim) + array.shape)


def spread(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns `array` repeated over leading axes to `shape`, in its dtype; its gradient is summed in at least fp32.

    The gradient of a broadcast in bf16 is a sum that some compilers make from many small ones in fp32, slowly.
    """
    wide = array.astype(jnp.float32) if array.dtype.itemsize < 4 else array
    return jnp.broadcast_to(along_last(wide, len(shape)), shape).astype(array.dtype)
