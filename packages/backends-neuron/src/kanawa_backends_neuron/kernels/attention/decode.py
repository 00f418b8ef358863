"""NKI: attention of a few queries over keys in pages, as a step of decoding or a prompt's part asks for it.

Legend: B rows, K key heads, M queries of a key head (T * G), D and Dv widths; pages: P in the pool, N tokens each.
A step of the loop takes `pages` pages; a row's steps that hold keys it may see are known when running only.
"""

import functools
from typing import Any, NamedTuple

import nki.isa as nisa
import nki.language as nl

from kanawa_backends_neuron.kernels.attention import online
from kanawa_backends_neuron.kernels.attention import scores as sc
from kanawa_backends_neuron.kernels.attention.ranges import TILE
from kanawa_backends_neuron.kernels.tiles import (
    PARTITIONS,
    bound,
    chunks,
    columns,
    columns_into,
    rows_of,
    share,
    tile_matmul,
)


def attention_decode(
    q: Any,
    k: Any,
    v: Any,
    table: Any,
    limits: Any,
    starts: Any,
    ends: Any,
    bounds: Any,
    scale: float,
    cap: float,
    page_size: int,
    pages: int,
) -> tuple[Any, Any]:
    """Returns out [B, K, M, Dv] in q's dtype and the log-sum-exp, fp32 [B, K, M, 1].

    q [B, K, M, D]; k [P, N, K * D]; v [P, N, K * Dv]; table int32 [steps of all rows, pages]; limits int32 [B, 2], a
    row's first step and the one after its last, counted over all rows; starts fp32 [steps, 1], the position of a step's
    first key; ends fp32 [B, 1], how many keys a row has; bounds fp32 [B, M, 2], the first and last key of each query.
    """
    batch, heads, queries, _ = q.shape
    value_width = v.shape[2] // heads
    out = nl.ndarray((batch, heads, queries, value_width), dtype=q.dtype, buffer=nl.shared_hbm)
    lse = nl.ndarray((batch, heads, queries, 1), dtype=nl.float32, buffer=nl.shared_hbm)

    def one_row(row: Any) -> None:
        first_step, end_step = bound(limits, row, 0), bound(limits, row, 1)
        places = sc.block_places(PARTITIONS)
        rest = _Rest(_everywhere(ends, row), _numbers(max(k.shape[2], v.shape[2]) // heads))
        for head in range(heads):
            for first in range(0, queries, TILE):
                count, at = min(TILE, queries - first), head * queries + first
                asked = _Asked(head, _columns(q, row, at, count), sc.query_mask(None, bounds, row, first, count).bounds)
                state = online.empty_state(count, value_width)
                pool = _Pool(k, v, table, starts, rest, page_size, pages, heads)
                body = functools.partial(_one_step, state, asked, pool, places, scale, cap)
                nl.fori_loop(first_step, end_step, body)
                result, sums = online.normalized_output(state, q.dtype)
                nisa.dma_copy(dst=rows_of(out, row, at, count, value_width), src=result)
                nisa.dma_copy(dst=rows_of(lse, row, at, count, 1), src=sums)

    nl.fori_loop(*share(batch), one_row)
    return out, lse


class _Asked(NamedTuple):
    """A tile of queries of one key head, their widths on partitions, and the keys each may see."""

    head: int
    columns: Any
    bounds: Any


class _Rest(NamedTuple):
    """A row's end, and a key's number in a tile, which it is compared with: fp32 [128, 1] and [128, width]."""

    end: Any
    numbers: Any


class _Pool(NamedTuple):
    """Where a row's keys lie, how, and where they end."""

    k: Any
    v: Any
    table: Any
    starts: Any
    rest: _Rest
    page_size: int
    pages: int
    heads: int


def _columns(q: Any, row: Any, at: int, count: int) -> Any:
    width = q.shape[3]
    tile = nl.ndarray((count, width), dtype=q.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=rows_of(q, row, at, count, width))
    return columns(tile, width)


def _one_step(
    state: online.Online, asked: _Asked, pool: _Pool, places: Any, scale: float, cap: float, step: Any
) -> None:
    """Takes in one step's keys and values."""
    count, keys = asked.bounds.shape[0], pool.page_size * pool.pages
    start = _everywhere(pool.starts, step)
    k_tiles, v_tiles = (_tiles(source, pool, asked.head, step) for source in (pool.k, pool.v))
    for tiles in (k_tiles, v_tiles):
        _clear(tiles, pool.rest, start)
    width = k_tiles[0].shape[1]
    parts = chunks(width)
    transposed = nl.ndarray((parts[0][1], len(parts), keys), dtype=pool.k.dtype, buffer=nl.sbuf)
    for number, tile in enumerate(k_tiles):
        columns_into(transposed, tile, number * PARTITIONS, width)
    scores, _ = sc.scaled(tile_matmul(asked.columns, transposed, 0, keys, width), scale, cap)
    sc.hide_out_of_bounds(scores, places, asked.bounds, start[0:count, :])
    online.absorb(state, scores, v_tiles)


def _everywhere(source: Any, row: Any) -> Any:
    """Returns a number of a table [rows, 1], fp32, on every partition."""
    tile = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
    pattern = [[0, PARTITIONS], [1, 1]]
    nisa.dma_copy(dst=tile, src=source.ap(pattern=pattern, scalar_offset=row, indirect_dim=0))
    return tile


def _numbers(width: int) -> Any:
    """Returns each partition's number, `width` times: fp32 [128, width]."""
    numbers = nl.ndarray((PARTITIONS, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=numbers, pattern=[[0, width]], offset=0, channel_multiplier=1)
    return numbers


def _clear(tiles: list[Any], rest: _Rest, start: Any) -> None:
    """Zeroes what lies behind the row's end, in place.

    Nobody sees it, but it is weighed with zero, and zero times a NaN that another sequence left in a page is NaN.
    """
    for number, tile in enumerate(tiles):
        count, width = tile.shape
        left = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=left, data=rest.end, op0=nl.subtract, operand0=start, op1=nl.subtract, operand1=number * PARTITIONS
        )
        behind = nl.ndarray((count, width), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=behind, data=rest.numbers[0:count, 0:width], op0=nl.greater_equal, operand0=left[0:count, :]
        )
        # Copied over, not multiplied with: no product gets rid of a NaN.
        nisa.tensor_copy_predicated(dst=tile, src=0.0, predicate=behind)


def _tiles(source: Any, pool: _Pool, head: int, step: Any) -> list[Any]:
    """Returns a step's keys or values of one head in SBUF: tiles of up to 128 rows."""
    row_width = source.shape[2]
    width = row_width // pool.heads
    keys = pool.page_size * pool.pages
    tiles = []
    for first in range(0, keys, PARTITIONS):
        count = min(PARTITIONS, keys - first)
        tile = nl.ndarray((count, width), dtype=source.dtype, buffer=nl.sbuf)
        done = 0
        while done < count:
            # What is left of the tile, or of the page.
            number, inside = divmod(first + done, pool.page_size)
            rows = min(count - done, pool.page_size - inside)
            pattern = [[row_width, rows], [1, width]]
            place = inside * row_width + head * width
            page = _page(pool, step, number)
            nisa.dma_copy(
                dst=tile[done : done + rows, :],
                src=source.ap(pattern=pattern, offset=place, scalar_offset=page, indirect_dim=0),
            )
            done += rows
        tiles.append(tile)
    return tiles


def _page(pool: _Pool, step: Any, number: int) -> Any:
    """Returns which page is the `number`-th of a step, in SBUF."""
    page = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    pattern = [[1, 1], [1, 1]]
    nisa.dma_copy(dst=page, src=pool.table.ap(pattern=pattern, offset=number, scalar_offset=step, indirect_dim=0))
    return page
