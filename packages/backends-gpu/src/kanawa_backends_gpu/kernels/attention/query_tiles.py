"""Which queries one program answers for, and which keys they may see: arrays that a kernel's programs look up.

Legend: B rows of q, T queries a row, S keys a row, N tokens a page, R page-table entries a row.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Operands

from kanawa_backends_gpu.kernels.triton_tiles import RowTiles


class QueryTiles(NamedTuple):
    """For each tile, int32.

    Attributes:
        row: the row of q.
        sequence: the row of the keys, of the page table and of the lengths.
        first, end: the tile's queries within the row; a tile that isn't needed has first == end.
        shift: a query's position less its place in the row, where positions aren't operands.
        keys: how many keys the sequence has.
    """

    row: jax.Array
    sequence: jax.Array
    first: jax.Array
    end: jax.Array
    shift: jax.Array
    keys: jax.Array

    @classmethod
    def of_problem(cls, problem: AttentionProblem, operands: Operands, height: int) -> "QueryTiles":
        """Returns tiles of at most `height` queries of one sequence each."""
        if problem.ragged_sequences is not None:
            return cls._ragged(problem, operands, height)
        tiles = -(-problem.q_length // height)
        row = jnp.repeat(jnp.arange(problem.batch, dtype=jnp.int32), tiles)
        first = jnp.tile(jnp.arange(tiles, dtype=jnp.int32) * height, problem.batch)
        keys = jnp.full_like(row, problem.kv_length)
        shift = jnp.zeros_like(row)
        if problem.has_kv_lengths:
            lengths = operands["kv_lengths"].astype(jnp.int32)[row]
            keys, shift = jnp.clip(lengths, 0, problem.kv_length), lengths - problem.q_length
        return cls(row, row, first, jnp.minimum(first + height, problem.q_length), shift, keys)

    @classmethod
    def _ragged(cls, problem: AttentionProblem, operands: Operands, height: int) -> "QueryTiles":
        starts = jnp.clip(operands["query_starts"].astype(jnp.int32), 0, problem.q_length)
        lengths = operands["kv_lengths"].astype(jnp.int32)
        tiles = RowTiles.of_groups(jnp.maximum(jnp.diff(starts), 0), problem.q_length, height)
        # Tiles count from the first sequence's first query, which need not be the row's.
        first, end = tiles.first + starts[0], tiles.end + starts[0]
        used = tiles.first < tiles.end
        keys = jnp.clip(lengths, 0, problem.kv_length)[tiles.group]
        return cls(
            row=jnp.zeros_like(first),
            sequence=tiles.group,
            first=jnp.where(used, first, 0),
            end=jnp.where(used, end, 0),
            shift=(lengths - starts[1:])[tiles.group],
            keys=keys,
        )


def owned_queries(problem: AttentionProblem, operands: Operands) -> jax.Array:
    """Returns which queries of the ragged row belong to a sequence: bool [T]."""
    starts, query = operands["query_starts"], jnp.arange(problem.q_length)
    owned: jax.Array = (query >= starts[0]) & (query < starts[-1])
    return owned
