"""Rows of groups cut into blocks of one group each: sizes are known when running only, the number of blocks before."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Blocks(NamedTuple):
    """Blocks of `size` rows; where a block has fewer, its places hold a number past the last row.

    Attributes:
        reads: int32 [blocks, size]: rows that belong to a group; past the end too for those after the last group.
        writes: int32 [blocks, size]: all rows, each once.
        groups: int32 [blocks, 1]: whose matrix a block meets; 0 for those after the last group, which read nothing.
        limits: int32 [groups, 2]: first block of each group, and the one after its last.
    """

    reads: jax.Array
    writes: jax.Array
    groups: jax.Array
    limits: jax.Array


def most_blocks(rows: int, groups: int, size: int) -> int:
    """Returns how many blocks there may be: each group, and what follows them, may end in one that isn't full."""
    return rows // size + groups + 1


def blocks_of(group_sizes: jax.Array, rows: int, size: int) -> Blocks:
    """Returns the blocks of `rows` sorted rows, of which group g owns the next group_sizes[g]."""
    groups = group_sizes.shape[0]
    sizes = group_sizes.astype(jnp.int32)
    # What no group owns comes last, as a group of its own: its output is zeros.
    sizes = jnp.concatenate([sizes, rows - jnp.sum(sizes, keepdims=True)])
    ends = jnp.cumsum(sizes)
    counts = (sizes + size - 1) // size
    last = jnp.cumsum(counts)
    first = last - counts
    block = jnp.arange(most_blocks(rows, groups, size), dtype=jnp.int32)
    owner = jnp.searchsorted(last, block, side="right").astype(jnp.int32)
    known = jnp.minimum(owner, groups)
    begin = ends[known] - sizes[known] + (block - first[known]) * size
    row = begin[:, None] + jnp.arange(size, dtype=jnp.int32)[None]
    real = (row < ends[known][:, None]) & (owner <= groups)[:, None]
    owned = real & (owner < groups)[:, None]
    return Blocks(
        jnp.where(owned, row, rows),
        jnp.where(real, row, rows),
        jnp.where(owner < groups, owner, 0)[:, None],
        jnp.stack([first[:groups], last[:groups]], axis=1),
    )
