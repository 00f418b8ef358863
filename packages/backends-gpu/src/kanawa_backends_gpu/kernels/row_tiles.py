"""Tiles of rows that belong to one group each, as arrays: what a kernel's programs look up."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


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
