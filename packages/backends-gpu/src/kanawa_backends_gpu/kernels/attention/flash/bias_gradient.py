"""The backward kernel for a dense bias: a program sums one tile of it over all that the bias is broadcast along.

No score is ever stored, so that the gradient of a bias that many rows or heads share takes the bias's own memory.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from kanawa_backends_gpu.kernels.attention.flash import tile
from kanawa_backends_gpu.kernels.attention.flash.gradients import row_numbers
from kanawa_backends_gpu.kernels.attention.flash.tile import At, Refs, Tiles


def grid(tiles: Tiles) -> tuple[int, int, int]:
    """Returns (tiles of the bias, its heads, its rows)."""
    batch, heads, *_ = _shape(tiles)
    return _blocks(tiles)[0] * _blocks(tiles)[1], heads, batch


def bias_gradient(refs: Refs, dbias: Any, *, tiles: Tiles) -> None:
    """Writes the cotangent of the bias, in its shape."""
    p = tiles.problem
    rows, heads, length, width = _shape(tiles)
    both, bias_head, bias_row = (pl.program_id(i) for i in range(3))
    q_block, k_block = tile.divided(both, _blocks(tiles)[1])
    bounds = refs["bounds"]

    def per_tile(row: Any, head: Any, query: Any, index: Any, total: Any) -> Any:
        kv_head, _ = tile.divided(head, p.group_size)
        start, key = query * tiles.queries, index * tiles.keys
        q, dout = (tile.load_rows(refs[n], row, head, start, tiles.queries, checked=True) for n in ("q", "dout"))
        k, v = (tile.load_rows(refs[n], row, kv_head, key, tiles.keys, checked=True) for n in ("k", "v"))
        at = At(row, head, start, key)
        score, _ = tile.scores(tiles, refs, at, tile.dot_pieces(q, k), masked=True)
        lse, delta = row_numbers(refs, row, head, start, tiles.queries)
        dweights = tile.dot_pieces(dout, v)
        if p.dropout_rate:
            dweights = dweights * tile.dropout_factor(tiles, refs, at)
        dscore = jnp.exp2(score - lse[:, None]) * (dweights - delta[:, None])
        for axis, length_of_bias in enumerate((length, width)):
            if length_of_bias == 1:
                dscore = jnp.sum(dscore, axis=axis)[None, :] if axis == 0 else jnp.sum(dscore, axis=axis)[:, None]
        return total + dscore

    def per_queries(row: Any, head: Any, query: Any, total: Any) -> Any:
        at = tile.row_of(bounds, row)
        first, end = bounds[at, query, 0], bounds[at, query, 3]
        if width != 1:
            # At most the one block of keys that this tile is of, if these queries see any of it.
            first, end = jnp.maximum(first, k_block), jnp.minimum(end, k_block + 1)
        return jax.lax.fori_loop(first, end, lambda index, seen: per_tile(row, head, query, index, seen), total)

    def per_head(pair: Any, total: Any) -> Any:
        of_row, of_head = tile.divided(pair, _repeats(heads, p.num_heads))
        row, head = of_row if rows == 1 else bias_row, of_head if heads == 1 else bias_head
        if length != 1:
            return per_queries(row, head, q_block, total)
        return jax.lax.fori_loop(0, tiles.query_blocks, lambda query, seen: per_queries(row, head, query, seen), total)

    height, breadth = (1 if length == 1 else tiles.queries), (1 if width == 1 else tiles.keys)
    pairs = _repeats(rows, p.batch) * _repeats(heads, p.num_heads)
    total = jax.lax.fori_loop(0, pairs, per_head, jnp.zeros((height, breadth), jnp.float32))
    _store(dbias, (bias_row, bias_head), (q_block * height, k_block * breadth), total)


def _shape(tiles: Tiles) -> tuple[int, int, int, int]:
    return tiles.problem.bias_shape or (1, 1, 1, 1)


def _blocks(tiles: Tiles) -> tuple[int, int]:
    """Returns how many tiles the bias has along its queries and its keys."""
    _, _, length, width = _shape(tiles)
    return (1 if length == 1 else tiles.query_blocks), (1 if width == 1 else tiles.key_blocks)


def _repeats(size: int, whole: int) -> int:
    return whole if size == 1 else 1


def _store(ref: Any, at: tuple[Any, Any], start: tuple[Any, Any], total: jax.Array) -> None:
    (height, width), (row, column) = total.shape, start
    inside = (row + jnp.arange(height) < ref.shape[2])[:, None] & (column + jnp.arange(width) < ref.shape[3])[None, :]
    view = ref.at[*at, pl.ds(row, height), pl.ds(column, width)]
    plgpu.store(view, total.astype(ref.dtype), mask=inside)
