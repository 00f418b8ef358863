"""Which pieces of which documents make up row r, for any r, without making the rows before it.

The global sequence is epoch after epoch. An epoch is its own permutation of the documents, cut into
windows of a fixed number of documents; or the windows are cut first, and each is permuted alone. A
window is packed alone and its rows are shuffled. A row's place needs the row counts of the windows
before it: they depend on lengths only, are planned when first needed and then remembered.
"""

import bisect
import functools
import threading
from typing import Literal, NamedTuple, Protocol

import numpy as np

from kanawa_runtime.data.errors import RowError
from kanawa_runtime.data.packing import PackedRows, Packing
from kanawa_runtime.data.permutation import permutation

_DOCUMENTS, _ROWS = 0, 1  # streams of the permutation

#: What documents are shuffled in.
Within = Literal["epoch", "window"]


class LengthsOf(Protocol):
    """Lengths by document; an array is one."""

    def __len__(self) -> int:
        """The number of documents."""

    def __getitem__(self, documents: np.ndarray, /) -> np.ndarray:
        """Lengths of some documents, each at least 1."""


class Piece(NamedTuple):
    """`length` predictions of document `document`, from prediction `start` on."""

    document: int
    start: int
    length: int


class _Window(NamedTuple):
    documents: np.ndarray  # [items], the window's documents in packing order
    rows: PackedRows
    row_order: np.ndarray  # [rows]


class RowPlan:
    """Maps a global row index to pieces: a pure function of lengths and settings."""

    def __init__(
        self,
        lengths: LengthsOf,
        capacity: int,
        packing: Packing,
        *,
        window_documents: int,
        seed: int,
        shuffle: bool = True,
        shuffle_within: Within = "epoch",
        epochs: int | None = None,
    ) -> None:
        """Takes the lengths of documents; `epochs=None` repeats for ever."""
        if len(lengths) == 0:
            message = "there is no document to make rows from"
            raise RowError(message)
        self._lengths, self._capacity, self._packing = lengths, capacity, packing
        self._window_documents, self._seed = window_documents, seed
        self._shuffle, self._epochs = shuffle, epochs
        self._over_epoch = shuffle_within == "epoch"
        self._windows_per_epoch = -(-len(lengths) // window_documents)
        self._ends: list[int] = []  # rows up to and including each window, over all epochs
        # The loader's threads share the plan.
        self._lock = threading.RLock()
        # Two of them: near the end of an epoch, threads read ahead into the next.
        self._order = functools.lru_cache(maxsize=2)(self._plan_order)
        self._window = functools.lru_cache(maxsize=4)(self._plan_window)

    def _plan_order(self, epoch: int) -> np.ndarray:
        if not self._shuffle:
            return np.arange(len(self._lengths))
        return permutation(len(self._lengths), self._seed, epoch, _DOCUMENTS)

    def _plan_window(self, index: int) -> _Window:
        epoch, window = divmod(index, self._windows_per_epoch)
        first = window * self._window_documents
        if self._over_epoch:
            documents = self._order(epoch)[first : first + self._window_documents]
        else:
            count = min(self._window_documents, len(self._lengths) - first)
            order = permutation(count, self._seed, index, _DOCUMENTS) if self._shuffle else np.arange(count)
            documents = first + order
        rows = self._packing.pack(self._lengths[documents].astype(np.int64), self._capacity)
        if self._shuffle:
            order = permutation(rows.num_rows, self._seed, index, _ROWS)
        else:
            order = np.arange(rows.num_rows)
        return _Window(documents, rows, order)

    def _extend(self) -> None:
        before = self._ends[-1] if self._ends else 0
        self._ends.append(before + self._window(len(self._ends)).rows.num_rows)

    def rows_through(self, epochs: int) -> int:
        """Returns the number of rows in the first `epochs` epochs."""
        with self._lock:
            while len(self._ends) < epochs * self._windows_per_epoch:
                self._extend()
            return self._ends[epochs * self._windows_per_epoch - 1] if epochs else 0

    @functools.cached_property
    def num_rows(self) -> int | None:
        """Rows in all epochs; None when they repeat for ever."""
        return None if self._epochs is None else self.rows_through(self._epochs)

    def row(self, index: int) -> list[Piece]:
        """Returns the pieces of row `index`; raises IndexError outside the sequence."""
        if index < 0 or (self._epochs is not None and index >= (self.num_rows or 0)):
            message = f"row {index} doesn't exist: the sequence has rows 0 to {(self.num_rows or 0) - 1}"
            if self.num_rows is None:
                message = f"row {index} doesn't exist: rows count from 0"
            raise IndexError(message)
        with self._lock:
            while not self._ends or self._ends[-1] <= index:
                self._extend()
            number = bisect.bisect_right(self._ends, index)
            window = self._window(number)
        local = index - (self._ends[number - 1] if number else 0)
        pieces = window.rows.row(int(window.row_order[local]))
        return [Piece(int(window.documents[item]), start, length) for item, start, length in pieces]
