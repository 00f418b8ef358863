"""The backward kernels for queries, for keys with values, and for a dense bias.

Dao, "FlashAttention-2" (2023), algorithm 2, in two kernels, so that no program adds to another's sum: the result is
the same at every run. Both do the scores again: seven products in all. No score is ever stored, so that the gradient
of a bias that many rows or heads share takes the bias's own memory.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from kanawa_backends_gpu.kernels.attention.flash import tile
from kanawa_backends_gpu.kernels.attention.flash.forward import place
from kanawa_backends_gpu.kernels.attention.flash.tile import At, Refs, Tiles
from kanawa_backends_gpu.kernels.attention.flash.visits import Visits
from kanawa_backends_gpu.kernels.triton_tiles import dot, pieces


def query_gradient(refs: Refs, dq: Any, *, tiles: Tiles, visited: Visits) -> None:
    """Writes dq [B, T, H, D]; grid and order are the forward kernel's."""
    p = tiles.problem
    row, head, kv_head, block = place(tiles)
    start = block * tiles.queries
    q, dout = (tile.load_rows(refs[n], row, head, start, tiles.queries, checked=True) for n in ("q", "dout"))
    lse, delta = row_numbers(refs, row, head, start, tiles.queries)
    sums = tuple(jnp.zeros((tiles.queries, width), jnp.float32) for _, width in pieces(p.head_dim))

    def one_block(index: Any, masked: bool, sums: Any) -> Any:
        key = index * tiles.keys
        k, v = (tile.load_rows(refs[n], row, kv_head, key, tiles.keys, checked=masked) for n in ("k", "v"))
        at = At(row, head, start, key)
        score, slope = tile.scores(tiles, refs, at, tile.dot_pieces(q, k), masked)
        weights = jnp.exp2(score - lse[:, None])
        dweights = tile.dot_pieces(dout, v)
        if p.dropout_rate:
            dweights = dweights * tile.dropout_factor(tiles, refs, at)
        dscore = weights * (dweights - delta[:, None])
        if slope is not None:
            dscore = dscore * slope
        dscore = dscore.astype(k[0].dtype)
        return tuple(old + dot(dscore, part) for old, part in zip(sums, k, strict=True))

    sums = tile.visit(visited, refs, row, block, one_block, sums)
    tile.store_rows(dq, row, head, start, [part * p.scale for part in sums])


def key_gradient(refs: Refs, dk: Any, dv: Any, *, tiles: Tiles, visited: Visits) -> None:
    """Writes dk [B, S, K, D] and dv [B, S, K, Dv]: a program sums over the query heads of its key head."""
    p = tiles.problem
    block, kv_head, row = (pl.program_id(i) for i in range(3))
    key = block * tiles.keys
    k, v = (tile.load_rows(refs[n], row, kv_head, key, tiles.keys, checked=True) for n in ("k", "v"))
    widths = [[width for _, width in pieces(x)] for x in (p.head_dim, p.v_head_dim)]
    sums = tuple(tuple(jnp.zeros((tiles.keys, width), jnp.float32) for width in one) for one in widths)

    def one_head(member: Any, sums: Any) -> Any:
        head = kv_head * p.group_size + member

        def one_block(index: Any, masked: bool, sums: Any) -> Any:
            dk, dv = sums
            start = index * tiles.queries
            q, dout = (tile.load_rows(refs[n], row, head, start, tiles.queries, checked=masked) for n in ("q", "dout"))
            lse, delta = row_numbers(refs, row, head, start, tiles.queries)
            at = At(row, head, start, key)
            score, slope = tile.scores(tiles, refs, at, tile.dot_pieces(k, q), masked, transposed=True)
            weights = jnp.exp2(score - lse[None, :])
            factor = tile.dropout_factor(tiles, refs, at, transposed=True) if p.dropout_rate else None
            weighed = (weights if factor is None else weights * factor).astype(dout[0].dtype)
            dv = tuple(old + dot(weighed, part) for old, part in zip(dv, dout, strict=True))
            dweights = tile.dot_pieces(v, dout)
            if factor is not None:
                dweights = dweights * factor
            dscore = weights * (dweights - delta[None, :])
            if slope is not None:
                dscore = dscore * slope
            dscore = dscore.astype(q[0].dtype)
            return tuple(old + dot(dscore, part) for old, part in zip(dk, q, strict=True)), dv

        return tile.visit(visited, refs, row, block, one_block, sums)

    dk_sums, dv_sums = one_head(0, sums) if p.group_size == 1 else jax.lax.fori_loop(0, p.group_size, one_head, sums)
    tile.store_rows(dk, row, kv_head, key, [part * p.scale for part in dk_sums])
    tile.store_rows(dv, row, kv_head, key, list(dv_sums))


def row_numbers(refs: Refs, row: Any, head: Any, start: Any, size: int) -> tuple[jax.Array, jax.Array]:
    """Returns the log-sum-exp in units of log2 and rowsum(dout * out) of `size` queries.

    Queries that don't exist have +inf, as those without a key have: all their weights are 0.
    """
    lse = tile.load_numbers(refs["lse"], (row, head), start, size, float("inf"))
    return lse, tile.load_numbers(refs["delta"], (row, head), start, size, 0.0)


def bias_grid(tiles: Tiles) -> tuple[int, int, int]:
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
