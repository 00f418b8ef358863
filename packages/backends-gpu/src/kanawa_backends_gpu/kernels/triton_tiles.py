"""What Triton's tiles can be, and their product: shared by every Pallas kernel here.

Triton's arrays have powers of two as sizes, and its matrix products at least 16 rows.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas import triton as plgpu

#: What the matrix units multiply at least: narrower tiles are padded to it.
NARROWEST = 16


def pieces(width: int) -> tuple[tuple[int, int], ...]:
    """Returns (offset, size) of the powers of two that a width is the sum of, the largest first.

    Padding 192 to 256 would spend a third more on products.
    """
    sizes = [1 << bit for bit in reversed(range(width.bit_length())) if width >> bit & 1]
    return tuple((sum(sizes[:i]), size) for i, size in enumerate(sizes))


def power_of_two(number: int) -> int:
    """Returns the smallest power of two that isn't less than `number`."""
    return 1 << (number - 1).bit_length()


def dividing(width: int, largest: int) -> int:
    """Returns the largest power of two up to `largest` that divides `width`."""
    return min(largest, width & -width)


def dot(a: jax.Array, b: jax.Array, *, trans_a: bool = False, trans_b: bool = False) -> jax.Array:
    """Returns the product of two tiles in fp32; fp32 factors aren't rounded to TF32's ten bits."""
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    product: jax.Array = plgpu.dot(a, b, trans_a=trans_a, trans_b=trans_b, precision=precision)
    return product
