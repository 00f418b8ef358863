"""NKI: attention's forward for whole rows, with its log-sum-exp (FlashAttention-2, arXiv:2307.08691).

Legend: R rows (one of a batch and key head each), G query heads of a key head, T queries, S keys, D and Dv widths.
"""

from typing import Any

import nki.isa as nisa
import nki.language as nl

from kanawa_backends_neuron.kernels.attention import online
from kanawa_backends_neuron.kernels.attention import scores as sc
from kanawa_backends_neuron.kernels.attention.ranges import TILE, Span, key_blocks
from kanawa_backends_neuron.kernels.tiles import (
    PARTITIONS,
    chunks,
    columns,
    columns_into,
    load,
    rows_of,
    share,
    tile_matmul,
)


def attention_forward(
    q: Any,
    k: Any,
    v: Any,
    q_ids: Any,
    kv_ids: Any,
    bounds: Any,
    scale: float,
    cap: float,
    span: tuple[bool, int, int, int, int],
) -> tuple[Any, Any]:
    """Returns out [R, G, T, Dv] in q's dtype and the log-sum-exp, fp32 [R, G, T, 1].

    q [R, G, T, D]; k [R, S, D]; v [R, S, Dv]; ids fp32 [R, T, 2] and [R, 2 * S], in planes (`scores.KeyMask`); bounds
    fp32 [R, T, 2], the first and last key of each query where the span doesn't say. cap: 0 for none. span: see
    `ranges.Span`.
    """
    rows, heads, length, width = q.shape
    keys, value_width = v.shape[1], v.shape[2]
    mask = Span(*span)
    out = nl.ndarray((rows, heads, length, value_width), dtype=q.dtype, buffer=nl.shared_hbm)
    lse = nl.ndarray((rows, heads, length, 1), dtype=nl.float32, buffer=nl.shared_hbm)

    def one_row(row: Any) -> None:
        # A row's keys and values stay in SBUF for all of its query heads.
        k_columns, values = transposed_keys(k, row), value_tiles(v, row)
        key_mask = sc.key_mask(kv_ids, bounds, row, keys)
        for head in range(heads):
            for first in range(0, length, TILE):
                count, at = min(TILE, length - first), head * length + first
                q_columns = columns(load(q, row, at, count, width), width)
                query_mask = sc.query_mask(q_ids, bounds, row, first, count)
                state = online.empty_state(count, value_width)
                for block in key_blocks(mask, first, count, keys):
                    dots = tile_matmul(q_columns, k_columns, block.first, block.size, width)
                    scores, _ = sc.scaled(dots, scale, cap)
                    if block.masked:
                        sc.hide_by_position(scores, mask, first, block)
                    if q_ids is not None:
                        sc.hide_other_segments(scores, query_mask.segments, key_mask.segments, block.first)
                    if bounds is not None:
                        sc.hide_out_of_bounds(scores, key_mask.places, query_mask.bounds, float(block.first))
                    online.absorb(state, scores, values_of(values, block.first, block.size))
                result, sums = online.normalized_output(state, q.dtype)
                nisa.dma_copy(dst=rows_of(out, row, at, count, value_width), src=result)
                nisa.dma_copy(dst=rows_of(lse, row, at, count, 1), src=sums)

    nl.fori_loop(*share(rows), one_row)
    return out, lse


def transposed_keys(k: Any, row: Any) -> Any:
    """Returns a row's keys with their width on partitions: [128, chunks, S]."""
    keys, width = k.shape[1], k.shape[2]
    parts = chunks(width)
    transposed = nl.ndarray((parts[0][1], len(parts), keys), dtype=k.dtype, buffer=nl.sbuf)
    for first in range(0, keys, PARTITIONS):
        columns_into(transposed, load(k, row, first, min(PARTITIONS, keys - first), width), first, width)
    return transposed


def value_tiles(v: Any, row: Any) -> list[Any]:
    """Returns a row's values, or keys, as they lie: tiles [128, Dv]."""
    keys, width = v.shape[1], v.shape[2]
    return [load(v, row, first, min(PARTITIONS, keys - first), width) for first in range(0, keys, PARTITIONS)]


def values_of(tiles: list[Any], first: int, size: int) -> list[Any]:
    """Returns the tiles of a block's values."""
    return tiles[first // PARTITIONS : (first + size + PARTITIONS - 1) // PARTITIONS]
