"""Packs pairs whose first segments share one half of a row, and whose second ones share the other."""

import numpy as np

from kanawa_runtime.data.packing import OnePerRow, PackedRows, Packing, rows_of_items


class InHalves(Packing):
    """Fills one row after the other, both halves at once: next comes the pair that leaves the least room.

    Room is the sum of both halves' squares, so that they fill alike (Panigrahy et al., "Heuristics for vector bin
    packing", 2011). `alone` gives each pair a row.
    """

    class Config(Packing.Config):
        alone: bool = False

    def pack(self, lengths: np.ndarray, capacity: int) -> PackedRows:
        """Returns rows for pairs of `lengths`, int64 [pairs, 2], each at most `capacity`, that of a half."""
        longest = lengths.max(axis=1)
        if self.config.alone:
            packing: Packing = OnePerRow.Config().build()
            return packing.pack(longest, capacity)
        rest, row, left = np.arange(len(lengths)), 0, np.full(2, capacity)
        order, rows = np.zeros_like(rest), np.zeros_like(rest)
        for place in range(len(lengths)):
            after = left - lengths[rest]
            fits = (after >= 0).all(axis=1)
            if not fits.any():
                row, after = row + 1, capacity - lengths[rest]
                fits = np.ones(len(rest), bool)
            chosen = int(np.where(fits, np.square(after).sum(axis=1), np.iinfo(np.int64).max).argmin())
            order[place], rows[place], left = rest[chosen], row, after[chosen]
            rest = np.delete(rest, chosen)
        return rows_of_items(longest, order, rows)
