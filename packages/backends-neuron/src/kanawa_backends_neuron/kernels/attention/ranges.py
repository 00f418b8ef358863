"""Which keys a tile of queries visits, known when compiling: what a mask empties is never loaded."""

from typing import NamedTuple

#: Rows of a tile: partitions.
TILE = 128
#: Keys of a block: the columns of one bank of PSUM in fp32.
BLOCK = 512


class Span(NamedTuple):
    """A mask by position: -1 for no window, 0 for no chunk. Queries start at 0, keys at `offset`."""

    causal: bool = False
    left: int = -1
    right: int = -1
    chunk: int = 0
    offset: int = 0


class KeyBlock(NamedTuple):
    """Keys `first` to `first + size`; `masked` where some query of the tile doesn't see some of them."""

    first: int
    size: int
    masked: bool


def key_blocks(span: Span, first: int, count: int, keys: int) -> list[KeyBlock]:
    """Returns the blocks of keys that queries `first` to `first + count` visit, in order, each from a whole tile on."""
    last = first + count - 1
    low, high = span.offset, span.offset + keys - 1
    if span.causal:
        high = min(high, last)
    if span.left >= 0:
        low = max(low, first - span.left)
    if span.right >= 0:
        high = min(high, last + span.right)
    if span.chunk:
        low = max(low, first // span.chunk * span.chunk)
        high = min(high, (last // span.chunk + 1) * span.chunk - 1)
    if high < low:
        return []
    # From positions to places.
    low, high = low - span.offset, high - span.offset
    blocks = []
    end = min(keys, (high // TILE + 1) * TILE)
    for start in range(low // TILE * TILE, end, BLOCK):
        size, at = min(BLOCK, end - start), start + span.offset
        blocks.append(KeyBlock(start, size, _hides(span, first, last, at, at + size - 1)))
    return blocks


def _hides(span: Span, first: int, last: int, low: int, high: int) -> bool:
    """Returns whether causality or the window hides one of these positions from one of these queries."""
    after = (span.causal and high > first) or (span.right >= 0 and high > first + span.right)
    return after or (span.left >= 0 and low < last - span.left)


def tile_pairs(span: Span, queries: int, keys: int) -> int:
    """Returns how many pairs of a tile of queries and a block of keys a head has: the length of its program."""
    starts = range(0, queries, TILE)
    return sum(len(key_blocks(span, first, min(TILE, queries - first), keys)) for first in starts)
