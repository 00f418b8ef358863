"""Which source row r of a mixture comes from, and which of that source's rows it is: integers only, for any r.

The sequence is a chain of spans, each with weights of its own. Inside a span, rows come in blocks. How many rows a
source has given after n rows of a span is a closed form in n (`Shares.counts`), so the shares are exact at each
block's end up to a row or two, and no row before r is looked at. Inside a block the sources come in shuffled order, and
a source's rows in their own order: any prefix of the sequence has taken a prefix of each source.
"""

import bisect
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np

from kanawa_runtime.data.permutation import permutation, stream_key

_BLOCK = 2  # stream of the permutation; the rows of packed sources use 0 and 1

Exhausted = Literal["stop", "drop"]
Reason = Literal["start", "schedule", "restart", "exhausted"]


class Phase(NamedTuple):
    """Weights, in the order of the sources, that apply from a row on."""

    first_row: int
    weights: tuple[Fraction, ...]
    reason: Reason


class Span(NamedTuple):
    """Rows from `first_row` on, before which each source had given `taken` rows; `dropped` are exhausted sources."""

    first_row: int
    taken: tuple[int, ...]
    shares: "Shares"
    reason: Reason
    dropped: tuple[int, ...]


class Shares:
    """Splits n rows among sources by weight: a binary tree of rounded divisions.

    Each division gives the left side round(n x its share), which grows by 0 or 1 a row; so does the right side. A
    source's count is never further from n x weight than 1 + log2(sources) / 2.
    """

    def __init__(self, weights: Sequence[Fraction]) -> None:
        self.weights = tuple(weights)
        self._sums = [Fraction(0)]
        for weight in weights:
            self._sums.append(self._sums[-1] + weight)

    def counts(self, rows: int) -> list[int]:
        """Returns how many of the first `rows` rows each source gives."""
        counts = [0] * len(self.weights)
        open_nodes = [(0, len(counts), rows)]
        while open_nodes:
            low, high, here = open_nodes.pop()
            if high - low == 1:
                counts[low] = here
                continue
            middle = (low + high) // 2
            whole = self._sums[high] - self._sums[low]
            share = (self._sums[middle] - self._sums[low]) / whole if whole else Fraction(0)
            left = (2 * here * share.numerator + share.denominator) // (2 * share.denominator)
            open_nodes += [(low, middle, left), (middle, high, here - left)]
        return counts


class MixedOrder:
    """Maps a row of a mixture to (source, row of that source).

    `limits` returns how many rows each source has, None without an end; it is asked only for sources with weight. A
    source that has none left ends the sequence ("stop"), or the others share its weight from there on ("drop").
    """

    def __init__(
        self,
        phases: Sequence[Phase],
        limits: Callable[[int], int | None],
        *,
        block_rows: int,
        seed: int,
        shuffle: bool,
        when_exhausted: Exhausted,
    ) -> None:
        """Takes phases in order, the first from row 0."""
        self._phases, self._limits = list(phases), limits
        self._block_rows, self._seed, self._shuffle = block_rows, seed, shuffle
        self._drops = when_exhausted == "drop"
        self._lock = threading.Lock()
        # The loader's threads read a few batches ahead, which may lie in neighbouring blocks.
        self._block = functools.lru_cache(maxsize=8)(self._plan_block)

    # --- rows --------------------------------------------------------------------------------------------------

    def at(self, row: int) -> tuple[int, int]:
        """Returns (source, row of the source); raises IndexError outside the sequence."""
        end = self.num_rows
        if row < 0 or (end is not None and row >= end):
            message = f"row {row} doesn't exist: " + (
                "rows count from 0" if end is None else f"the sequence has rows 0 to {end - 1}"
            )
            raise IndexError(message)
        number, inside = self._place(row)
        block, place = divmod(inside, self._block_rows)
        sources, rows = self._block(number, block)
        return int(sources[place]), int(rows[place])

    def taken(self, row: int) -> list[int]:
        """Returns how many rows of each source lie before a row."""
        number, inside = self._place(row)
        return self._taken(number, inside)

    @property
    def num_rows(self) -> int | None:
        """Rows in the sequence; None where it has no end."""
        return self._ending[1]

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans in order."""
        return self._ending[0]

    # --- spans -------------------------------------------------------------------------------------------------

    @property
    def _ending(self) -> tuple[tuple[Span, ...], int | None]:
        with self._lock:
            return self._planned

    @functools.cached_property
    def _planned(self) -> tuple[tuple[Span, ...], int | None]:
        """The spans, and the end of the last; where a source is exhausted is found by bisection."""
        self._spans: list[Span] = []
        queue, taken, dropped = list(self._phases), [0] * len(self._phases[0].weights), frozenset[int]()
        end: int | None = None
        while queue:
            phase = queue.pop(0)
            if self._drops:
                dropped |= self._without_rows(phase.weights, taken)
            weights = tuple(Fraction(0) if s in dropped else w for s, w in enumerate(phase.weights))
            if not any(weights):
                # Whatever has rows left has no weight here: the next phase begins at once.
                end = phase.first_row
                queue[:1] = [later._replace(first_row=end) for later in queue[:1]]
                continue
            named = tuple(sorted(s for s in dropped if phase.weights[s]))
            self._spans.append(Span(phase.first_row, tuple(taken), Shares(weights), phase.reason, named))
            end = self._exhausted_at(len(self._spans) - 1)
            until = queue[0].first_row if queue else None
            if end is None or (until is not None and until <= end):
                end = until
            elif self._drops:
                queue.insert(0, Phase(end, phase.weights, "exhausted"))
            else:
                queue = []
            if end is not None:
                taken = self._taken(len(self._spans) - 1, end - phase.first_row)
        return tuple(self._spans), end

    def _without_rows(self, weights: Sequence[Fraction], taken: Sequence[int]) -> frozenset[int]:
        limits = {s: self._limits(s) for s, weight in enumerate(weights) if weight}
        return frozenset(s for s, limit in limits.items() if limit is not None and taken[s] >= limit)

    def _exhausted_at(self, number: int) -> int | None:
        """Returns the first row of a span that asks a source for a row it doesn't have; None where none does."""
        span = self._spans[number]
        ends = []
        for source, weight in enumerate(span.shares.weights):
            limit = self._limits(source) if weight else None
            if limit is not None:
                ends.append(span.first_row + self._occurrence(number, source, max(0, limit - span.taken[source])))
        return min(ends, default=None)

    def _occurrence(self, number: int, source: int, count: int) -> int:
        """Returns where in a span a source's row stands before which `count` others of it stand."""
        shares, size = self._spans[number].shares, self._block_rows
        high = 1
        while shares.counts(high * size)[source] <= count:
            high *= 2
        block = bisect.bisect_right(range(high), count, key=lambda b: shares.counts(b * size)[source]) - 1
        sources, _ = self._block(number, block)
        before = shares.counts(block * size)[source]
        return block * size + int(np.flatnonzero(sources == source)[count - before])

    def _place(self, row: int) -> tuple[int, int]:
        spans = self.spans
        number = bisect.bisect_right(spans, row, key=lambda span: span.first_row) - 1
        return number, row - spans[number].first_row

    def _taken(self, number: int, inside: int) -> list[int]:
        span = self._spans[number]
        block, place = divmod(inside, self._block_rows)
        counts = np.asarray(span.shares.counts(block * self._block_rows), object)
        if place:
            sources, _ = self._block(number, block)
            counts = counts + np.bincount(sources[:place], minlength=len(counts)).astype(object)
        return [int(a + b) for a, b in zip(span.taken, counts, strict=True)]

    def _plan_block(self, number: int, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the source of each place of a block, and the row of that source."""
        span, size = self._spans[number], self._block_rows
        before, after = (span.shares.counts(b * size) for b in (block, block + 1))
        given = [b - a for a, b in zip(before, after, strict=True)]
        sources = np.repeat(np.arange(len(given)), given)
        # The k-th of a source's c rows here is (k + 1/2) / c of the way through the block.
        places = np.concatenate([(2 * np.arange(c) + 1) * (size // 2 + 1) / max(c, 1) for c in given])
        order = np.argsort(places, kind="stable")
        if self._shuffle:
            order = permutation(size, self._seed, stream_key(span.first_row), block, _BLOCK)
        sources = sources[order]
        rows = np.empty(size, np.int64)
        for source, count in enumerate(given):
            if count:
                rows[sources == source] = span.taken[source] + before[source] + np.arange(count)
        return sources, rows


def phases_after(row: int, past: Sequence[Phase], planned: Sequence[Phase]) -> list[Phase]:
    """Returns the past up to a row, and from there on what is planned now; a change at that row is a restart's."""
    kept = [phase for phase in past if phase.first_row < row]
    now = [phase for phase in planned if phase.first_row <= row][-1]
    later = [phase for phase in planned if phase.first_row > row]
    if not kept:
        return [now._replace(first_row=0), *later]
    if kept[-1].weights != now.weights:
        kept.append(Phase(row, now.weights, "restart"))
    return [*kept, *later]


def exact(weights: Mapping[str, float], names: Sequence[str]) -> tuple[Fraction, ...]:
    """Returns weights in the order of `names` as the fractions that their digits say: 0.7 is 7/10."""
    return tuple(Fraction(repr(weights[name])) for name in names)
