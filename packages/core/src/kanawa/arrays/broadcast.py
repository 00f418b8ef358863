"""Explicit broadcasting: implicit rank promotion is an error in our tests, because it hides transposed shapes."""

import jax


def along_last(array: jax.Array, ndim: int) -> jax.Array:
    """Returns `array` with leading axes of size 1, so that it has `ndim` dimensions."""
    return array.reshape((1,) * (ndim - array.ndim) + array.shape)
