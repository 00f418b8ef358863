"""NKI: scores of a tile of queries against a block of keys, scaled, capped and masked, in SBUF."""

from typing import Any, NamedTuple

import nki.isa as nisa
import nki.language as nl

from kanawa_backends_neuron.kernels.attention.ranges import BLOCK, KeyBlock, Span
from kanawa_backends_neuron.kernels.tiles import PARTITIONS, filled, load

#: What a masked score is or gets added: finite, so that no difference of two is NaN.
MASKED = -1e30
#: A row whose largest score lies below this saw no key.
UNSEEN = -5e29


class KeyMask(NamedTuple):
    """What a row's keys are compared with, in SBUF: segments [128, 2 * keys], and 0, 1, 2, … in a block.

    Ids are two planes, of their upper and lower 16 bits: the engines compare in fp32, which holds no more than 24.
    """

    segments: Any
    places: Any


class QueryMask(NamedTuple):
    """A tile's segments [count, 2], and the first and last key that each query may see [count, 2]; maybe None."""

    segments: Any
    bounds: Any


def key_mask(kv_ids: Any, bounds: Any, row: Any, keys: int) -> KeyMask:
    """Returns what a row's blocks have in common; ids [rows, 2 * keys] in HBM are read onto all partitions."""
    segments = places = None
    if kv_ids is not None:
        segments = nl.ndarray((PARTITIONS, 2 * keys), dtype=nl.float32, buffer=nl.sbuf)
        everywhere = kv_ids.ap(pattern=[[0, PARTITIONS], [1, 2 * keys]], scalar_offset=row, indirect_dim=0)
        nisa.dma_copy(dst=segments, src=everywhere)
    if bounds is not None:
        places = block_places(PARTITIONS)
    return KeyMask(segments, places)


def block_places(count: int) -> Any:
    """Returns the numbers of a block's keys on `count` partitions, fp32 [count, BLOCK]."""
    places = nl.ndarray((count, BLOCK), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=places, pattern=[[1, BLOCK]], offset=0, channel_multiplier=0)
    return places


def query_mask(q_ids: Any, bounds: Any, row: Any, first: int, count: int) -> QueryMask:
    """Returns what a tile of queries is compared with."""
    segments = None if q_ids is None else load(q_ids, row, first, count, 2)
    return QueryMask(segments, None if bounds is None else load(bounds, row, first, count, 2))


def scaled(product: Any, scale: float, cap: float) -> tuple[Any, Any]:
    """Returns (scores in SBUF from their product in PSUM, tanh of the uncapped ones or None where cap is 0)."""
    scores = nl.ndarray(product.shape, dtype=nl.float32, buffer=nl.sbuf)
    if not cap:
        nisa.tensor_scalar(dst=scores, data=product, op0=nl.multiply, operand0=scale)
        return scores, None
    tanh = nl.ndarray(product.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=tanh, op=nl.tanh, data=product, scale=scale / cap)
    nisa.tensor_scalar(dst=scores, data=tanh, op0=nl.multiply, operand0=cap)
    return scores, tanh


def hide_by_position(scores: Any, span: Span, first: int, block: KeyBlock) -> None:
    """Hides what causality and the window hide from queries `first` and following, in place."""
    # Query minus key, of partition p and column c: first + p - (span.offset + block.first + c).
    ahead = first - span.offset - block.first
    if span.causal or span.right >= 0:
        _select(scores, ahead + max(span.right, 0), 1)
    if span.left >= 0:
        _select(scores, span.left - ahead, -1)


def _select(scores: Any, offset: int, query: int) -> None:
    """Keeps where offset + query * (p - c) >= 0."""
    nisa.affine_select(
        dst=scores,
        pattern=[[-query, scores.shape[1]]],
        channel_multiplier=query,
        on_true_tile=scores,
        on_false_value=MASKED,
        cmp_op=nl.greater_equal,
        offset=offset,
    )


def hide_other_segments(scores: Any, queries: Any, keys: Any, first: int) -> None:
    """Hides keys `first` and following whose segment isn't the query's, in place."""
    count, size = scores.shape
    for plane in range(2):
        start = plane * (keys.shape[1] // 2) + first
        _hide_where(scores, keys[0:count, start : start + size], nl.not_equal, queries[:, plane : plane + 1])


def hide_out_of_bounds(scores: Any, places: Any, bounds: Any, first: Any) -> None:
    """Hides keys before the first or after the last that a query may see; `first` numbers the block's first key.

    first: a number, or a tile [count, 1] where only the device knows it.
    """
    count, size = scores.shape
    here = nl.ndarray((count, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=here, data=bounds, op0=nl.subtract, operand0=first)
    _hide_where(scores, places[0:count, 0:size], nl.less, here[:, 0:1])
    _hide_where(scores, places[0:count, 0:size], nl.greater, here[:, 1:2])


def _hide_where(scores: Any, data: Any, compare: Any, operand: Any) -> None:
    # Added instead of selected: 1e30 swallows any score, and two instructions do it.
    penalty = nl.ndarray(scores.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=penalty, data=data, op0=compare, operand0=operand, op1=nl.multiply, operand1=MASKED)
    nisa.tensor_tensor(dst=scores, data1=scores, data2=penalty, op=nl.add)


def seen(top: Any) -> Any:
    """Returns 1 for rows [count, 1] that saw a key, else 0."""
    flag = filled(top.shape, 0.0)
    nisa.tensor_scalar(dst=flag, data=top, op0=nl.greater, operand0=UNSEEN)
    return flag
