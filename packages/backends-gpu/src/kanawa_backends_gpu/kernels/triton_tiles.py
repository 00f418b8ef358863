"""What Triton's tiles can be, their product, and tiles of rows in groups: shared by every Pallas kernel here.

Triton's arrays have powers of two as sizes, and its matrix products at least 16 rows.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas import triton as plgpu
from kanawa.kernels.masks import MaskSpec, unfit

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


class RowTiles(NamedTuple):
    """For each of a fixed number of tiles, int32: its group, and the rows [first, end) it is answerable for.

    Tiles that aren't needed have first == end. Every row of a group lies in exactly one tile.
    """

    group: jax.Array
    first: jax.Array
    end: jax.Array

    @classmethod
    def of_groups(cls, sizes: jax.Array, rows: int, height: int) -> "RowTiles":
        """Returns the tiles of `rows` rows sorted by group; a group's last tile may be cut short."""
        groups = sizes.shape[0]
        group_end = jnp.cumsum(sizes)
        group_first = group_end - sizes
        needed = (sizes + height - 1) // height
        last_tile = jnp.cumsum(needed)
        tile = jnp.arange(-(-rows // height) + groups, dtype=jnp.int32)
        group = jnp.minimum(jnp.searchsorted(last_tile, tile, side="right"), groups - 1).astype(jnp.int32)
        first = group_first[group] + (tile - (last_tile - needed)[group]) * height
        end = jnp.minimum(group_end[group], first + height)
        used = tile < last_tile[-1]
        return cls(group, jnp.where(used, first, 0).astype(jnp.int32), jnp.where(used, end, 0).astype(jnp.int32))


#: Primitives of integer and boolean arithmetic that Pallas lowers to Triton, element by element.
_ELEMENTWISE = frozenset(
    {"abs", "add", "and", "broadcast_in_dim", "convert_element_type", "div", "eq", "ge", "gt", "le", "lt", "max", "min"}
    | {"mul", "ne", "neg", "not", "or", "rem", "select_n", "shift_left", "shift_right_arithmetic", "sign", "sub", "xor"}
    | {"shift_right_logical"}
)


def unfit_predicates(mask: MaskSpec) -> str:
    """Returns why a predicate of the mask, `any_of` included, can't run in a kernel; empty if all can."""
    return unfit(mask, _ELEMENTWISE, "Triton")
