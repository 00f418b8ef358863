"""The blocks that a tile of queries visits: all that a mask shows, and nothing that it empties for certain."""

import numpy as np
import pytest
from kanawa_backends_neuron.kernels.attention.ranges import BLOCK, TILE, Span, key_blocks, tile_pairs

SPANS = (
    Span(),
    Span(causal=True),
    Span(causal=True, left=100),
    Span(left=30, right=200),
    Span(causal=True, chunk=300),
    Span(causal=True, offset=512),
    Span(causal=True, left=700, offset=-640),
    Span(right=0, offset=2000),
)


def visible(span, first, count, keys):
    q, k = np.arange(first, first + count)[:, None], span.offset + np.arange(keys)[None]
    shown = np.ones((count, keys), bool)
    shown &= (k <= q) if span.causal else True
    shown &= (k >= q - span.left) if span.left >= 0 else True
    shown &= (k <= q + span.right) if span.right >= 0 else True
    return shown, shown & ((k // span.chunk == q // span.chunk) if span.chunk else True)


@pytest.mark.parametrize("span", SPANS, ids=str)
@pytest.mark.parametrize("first, count, keys", [(0, 128, 1000), (128, 72, 1000), (1024, 128, 1152), (0, 1, 5)])
def test_blocks_hold_what_is_seen(span, first, count, keys):
    by_distance, seen = visible(span, first, count, keys)
    visited = np.zeros(keys, bool)
    for block in key_blocks(span, first, count, keys):
        there = slice(block.first, block.first + block.size)
        assert block.first % TILE == 0
        assert 0 < block.size <= BLOCK
        assert not visited[there].any()
        visited[there] = True
        assert block.masked or by_distance[:, there].all()
    assert not seen[:, ~visited].any()


def test_causality_halves_the_work_and_a_window_leaves_a_band():
    full, causal, narrow = (tile_pairs(span, 8192, 8192) for span in (Span(), SPANS[1], SPANS[2]))
    assert full == 64 * 16
    assert causal < 0.54 * full
    assert narrow == 64
