"""NKI: attention's backward from its log-sum-exp (FlashAttention-2, algorithm 2). Legend: see `forward`.

With p = exp(score - lse): dv = p^T dout, dscore = p * (dout v^T - delta), dq = dscore k, dk = dscore^T q. Queries lie
on partitions, so that p and dscore are stationary operands as they come; only dq needs dscore transposed.
"""

from typing import Any

import nki.isa as nisa
import nki.language as nl

from kanawa_backends_neuron.kernels.attention import scores as sc
from kanawa_backends_neuron.kernels.attention.forward import transposed_keys, value_tiles, values_of
from kanawa_backends_neuron.kernels.attention.ranges import TILE, KeyBlock, Span, key_blocks
from kanawa_backends_neuron.kernels.tiles import (
    PARTITIONS,
    columns,
    filled,
    load,
    rows_of,
    share,
    tile_matmul,
    transpose_into,
)


def attention_backward(
    q: Any,
    k: Any,
    v: Any,
    q_ids: Any,
    kv_ids: Any,
    bounds: Any,
    dout: Any,
    negative_lse: Any,
    delta: Any,
    scale: float,
    cap: float,
    span: tuple[bool, int, int, int, int],
) -> tuple[Any, Any, Any]:
    """Returns dq, dk and dv, like q, k and v.

    dout [R, G, T, Dv]; negative_lse and delta (row sums of dout * out), fp32 [R, G, T, 1]; a row that saw no key has a
    negative_lse that makes all weights 0. The rest: see `attention_forward`.
    """
    rows, heads, length, width = q.shape
    keys, value_width = v.shape[1], v.shape[2]
    mask = Span(*span)
    dq, dk, dv = (nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm) for x in (q, k, v))

    def one_row(row: Any) -> None:
        k_columns, v_columns = transposed_keys(k, row), transposed_keys(v, row)
        k_tiles = value_tiles(k, row)
        dk_tiles = [filled((tile.shape[0], width), 0.0) for tile in k_tiles]
        dv_tiles = [filled((tile.shape[0], value_width), 0.0) for tile in k_tiles]
        key_mask = sc.key_mask(kv_ids, bounds, row, keys)
        for head in range(heads):
            for first in range(0, length, TILE):
                count, at = min(TILE, length - first), head * length + first
                q_rows, dout_rows = load(q, row, at, count, width), load(dout, row, at, count, value_width)
                q_columns, dout_columns = columns(q_rows, width), columns(dout_rows, value_width)
                negative, mean = load(negative_lse, row, at, count, 1), load(delta, row, at, count, 1)
                query_mask = sc.query_mask(q_ids, bounds, row, first, count)
                dq_rows = filled((count, width), 0.0)
                for block in key_blocks(mask, first, count, keys):
                    dots = tile_matmul(q_columns, k_columns, block.first, block.size, width)
                    scores, tanh = sc.scaled(dots, scale, cap)
                    if block.masked:
                        sc.hide_by_position(scores, mask, first, block)
                    if q_ids is not None:
                        sc.hide_other_segments(scores, query_mask.segments, key_mask.segments, block.first)
                    if bounds is not None:
                        sc.hide_out_of_bounds(scores, key_mask.places, query_mask.bounds, float(block.first))
                    weights = nl.ndarray(scores.shape, dtype=nl.float32, buffer=nl.sbuf)
                    nisa.activation(dst=weights, op=nl.exp, data=scores, bias=negative)
                    dots = tile_matmul(dout_columns, v_columns, block.first, block.size, value_width)
                    dscores = _score_gradient(weights, dots, mean, tanh)
                    _add_keys(dv_tiles, _as(weights, q.dtype), dout_rows, block)
                    dscores = _as(dscores, q.dtype)
                    _add_keys(dk_tiles, dscores, q_rows, block)
                    _add_queries(dq_rows, dscores, values_of(k_tiles, block.first, block.size))
                _store(dq, row, at, dq_rows, scale)
        for number, (dk_tile, dv_tile) in enumerate(zip(dk_tiles, dv_tiles)):  # noqa: B905
            _store(dk, row, number * PARTITIONS, dk_tile, scale)
            _store(dv, row, number * PARTITIONS, dv_tile, 1.0)

    nl.fori_loop(*share(rows), one_row)
    return dq, dk, dv


def _score_gradient(weights: Any, dots: Any, delta: Any, tanh: Any) -> Any:
    """Returns weights * (dots - delta), times what the cap leaves: the gradient of the scores before their scale."""
    result = nl.ndarray(weights.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(dst=result, data=dots, op0=nl.subtract, operand0=delta, op1=nl.multiply, operand1=weights)
    if tanh is not None:
        # d(cap * tanh(s / cap)) = 1 - tanh^2.
        left = nl.ndarray(weights.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=left, data1=tanh, data2=tanh, op=nl.multiply)
        nisa.tensor_scalar(dst=left, data=left, op0=nl.multiply, operand0=-1.0, op1=nl.add, operand1=1.0)
        nisa.tensor_tensor(dst=result, data1=result, data2=left, op=nl.multiply)
    return result


def _as(tile: Any, dtype: Any) -> Any:
    """Returns an fp32 tile in the operands' dtype, as matmuls take it."""
    if dtype == nl.float32:
        return tile
    rounded = nl.ndarray(tile.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=rounded, src=tile)
    return rounded


def _add_keys(totals: list[Any], weights: Any, queries: Any, block: KeyBlock) -> None:
    """Adds weights^T queries to the tiles of the block's keys."""
    for start in range(0, block.size, PARTITIONS):
        total = totals[(block.first + start) // PARTITIONS]
        size = total.shape[0]
        part = nl.ndarray(total.shape, dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=part, stationary=weights[:, start : start + size], moving=queries, accumulate=False)
        nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)


def _add_queries(total: Any, dscores: Any, keys: list[Any]) -> None:
    """Adds dscores times the block's keys, tiles as they lie, to the gradient of the queries."""
    count = dscores.shape[0]
    part = nl.ndarray(total.shape, dtype=nl.float32, buffer=nl.psum)
    for number, tile in enumerate(keys):
        size, start = tile.shape[0], number * PARTITIONS
        transposed = nl.ndarray((size, count), dtype=dscores.dtype, buffer=nl.sbuf)
        transpose_into(transposed, dscores[:, start : start + size])
        nisa.nc_matmul(dst=part, stationary=transposed, moving=tile, accumulate=number > 0)
    nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)


def _store(target: Any, row: Any, first: int, tile: Any, scale: float) -> None:
    count, width = tile.shape
    rounded = nl.ndarray((count, width), dtype=target.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=rounded, data=tile, op0=nl.multiply, operand0=scale)
    nisa.dma_copy(dst=rows_of(target, row, first, count, width), src=rounded)
