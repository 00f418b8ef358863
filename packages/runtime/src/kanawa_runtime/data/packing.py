"""Puts the documents of one window into rows: pure functions of lengths that never see a token."""

import abc
import bisect
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from kanawa.config import Configurable


class PackedRows(NamedTuple):
    """Pieces of items: row r holds pieces `row_offsets[r]` to `row_offsets[r + 1]`, in order.

    All int64. Piece p is `length[p]` long and starts at `start[p]` of item `item[p]`.
    """

    item: np.ndarray
    start: np.ndarray
    length: np.ndarray
    row_offsets: np.ndarray

    @property
    def num_rows(self) -> int:
        """Rows in the window."""
        return len(self.row_offsets) - 1

    def row(self, index: int) -> list[tuple[int, int, int]]:
        """Returns (item, start, length) of each piece of row `index`."""
        pieces = slice(int(self.row_offsets[index]), int(self.row_offsets[index + 1]))
        columns = (self.item[pieces], self.start[pieces], self.length[pieces])
        return list(zip(*(column.tolist() for column in columns), strict=True))


class Packing(Configurable):
    """Plans rows of at most `capacity` from lengths; every position of an item is used once."""

    class Config(Configurable.Config):
        #: Each piece is a segment of its own, which attends to itself only. False: a row is one segment.
        separate_documents: bool = True

    @abc.abstractmethod
    def pack(self, lengths: np.ndarray, capacity: int) -> PackedRows:
        """Returns rows for items of `lengths`, int64 [items], each at least 1."""


class BestFitPacking(Packing):
    """Cuts only what is longer than a row; rests and short items go to the fullest row with room.

    Best-fit decreasing (Ding et al., "Fewer Truncations Improve Language Modeling", 2024): few
    documents are cut and less than one row in a hundred is wasted on usual text.
    """

    def pack(self, lengths: np.ndarray, capacity: int) -> PackedRows:
        """Returns full rows of long items first, then the packed rests."""
        rest = lengths % capacity
        return _with_full_rows(lengths, capacity, np.argsort(-rest, kind="stable"), _best_fit)


class FirstFitPacking(Packing):
    """Cuts only what is longer than a row; rests and short items, in their order, go to the first row with room.

    Neighbours stay closer together than by best fit, which looks at the longest of a window first, and rows are less
    full: first fit (Johnson, "Near-optimal bin packing algorithms", 1973).
    """

    def pack(self, lengths: np.ndarray, capacity: int) -> PackedRows:
        """Returns full rows of long items first, then the packed rests."""
        return _with_full_rows(lengths, capacity, np.arange(len(lengths)), _first_fit)


class ConcatenatedPacking(Packing):
    """Joins the documents and cuts every `capacity`: only a window's last row has padding."""

    def pack(self, lengths: np.ndarray, capacity: int) -> PackedRows:
        """Returns the pieces between document ends and row ends."""
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        cuts = np.unique(np.concatenate([ends, np.arange(capacity, total, capacity)])).astype(np.int64)
        begins = np.concatenate([np.zeros(1, np.int64), cuts[:-1]])[: len(cuts)]
        # "right": where one document ends, the piece is the next one's.
        item = np.searchsorted(ends, begins, side="right")
        start = begins - (ends - lengths)[item]
        return PackedRows(item, start, cuts - begins, _offsets(begins // capacity))


class OnePerRow(Packing):
    """Gives each item rows of its own, as many as it fills: what follows a row's sequence is padding."""

    def pack(self, lengths: np.ndarray, capacity: int) -> PackedRows:
        """Returns a row for each item, and further ones for what is longer than a row."""
        rows = -(-lengths // capacity)
        item = np.repeat(np.arange(len(lengths)), rows)
        start = (np.arange(len(item)) - np.repeat(np.cumsum(rows) - rows, rows)) * capacity
        length = np.minimum(lengths[item] - start, capacity)
        return PackedRows(item, start, length, np.arange(len(item) + 1))


def _with_full_rows(
    lengths: np.ndarray, capacity: int, order: np.ndarray, fit: Callable[[list[int], int], np.ndarray]
) -> PackedRows:
    """Returns rows full of long items, then those into which `fit` puts the rests, taken in `order`."""
    full = lengths // capacity
    full_item = np.repeat(np.arange(len(lengths)), full)
    # The running index less where the item's own run begins: 0, 1, 2, … within each item.
    full_start = (np.arange(len(full_item)) - np.repeat(np.cumsum(full) - full, full)) * capacity
    rest = lengths - full * capacity
    order = order[rest[order] > 0]
    row_of = len(full_item) + fit(rest[order].tolist(), capacity)
    rows = np.concatenate([np.arange(len(full_item)), row_of])
    by_row = np.argsort(rows, kind="stable")
    full_length = np.full(len(full_item), capacity, np.int64)
    return PackedRows(
        np.concatenate([full_item, order])[by_row],
        np.concatenate([full_start, full[order] * capacity])[by_row],
        np.concatenate([full_length, rest[order]])[by_row],
        _offsets(rows[by_row]),
    )


def rows_of_items(lengths: np.ndarray, order: np.ndarray, row_of: np.ndarray) -> PackedRows:
    """Returns the rows of whole items, taken in `order`, which go to rows `row_of`."""
    by_row = np.argsort(row_of, kind="stable")
    items = order[by_row]
    return PackedRows(items, np.zeros_like(items), lengths[items], _offsets(row_of[by_row]))


def _first_fit(sizes: list[int], capacity: int) -> np.ndarray:
    """Returns the row of each size, in order: the first with room. Rows are leaves of a tree of the most room below."""
    leaves = 1 << max(0, len(sizes) - 1).bit_length()
    room = [capacity] * (2 * leaves)
    rows: list[int] = []
    for size in sizes:
        node = 1
        while node < leaves:
            node *= 2
            node += room[node] < size
        rows.append(node - leaves)
        room[node] -= size
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return np.array(rows, np.int64)


def _best_fit(sizes: list[int], capacity: int) -> np.ndarray:
    """Returns the row of each size, large to small: the fullest row with room, else a new one."""
    room: list[tuple[int, int]] = []  # (space left, row), sorted
    rows: list[int] = []
    opened = 0
    for size in sizes:
        # The first with at least `size` left is the fullest that has room; -1 comes before every row.
        place = bisect.bisect_left(room, (size, -1))
        if place < len(room):
            left, row = room.pop(place)
        else:
            left, row = capacity, opened
            opened += 1
        rows.append(row)
        if left > size:
            bisect.insort(room, (left - size, row))
    return np.array(rows, np.int64)


def _offsets(row_of_piece: np.ndarray) -> np.ndarray:
    """Returns the first piece of each row and the end, for ascending rows without gaps."""
    num_rows = int(row_of_piece[-1]) + 1 if len(row_of_piece) else 0
    return np.searchsorted(row_of_piece, np.arange(num_rows + 1)).astype(np.int64)
