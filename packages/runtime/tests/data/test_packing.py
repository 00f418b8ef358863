"""Every position of every item exactly once, no row too long, little waste."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kanawa_runtime.data.packing import BestFitPacking, ConcatenatedPacking, FirstFitPacking, Packing

PACKINGS = [BestFitPacking, FirstFitPacking, ConcatenatedPacking]
LENGTHS = st.lists(st.integers(1, 60), max_size=60)


@pytest.mark.parametrize("kind", PACKINGS)
@given(lengths=LENGTHS, capacity=st.integers(1, 25))
def test_covers_everything_once(kind: type[Packing], lengths: list[int], capacity: int) -> None:
    packed = kind.Config().build().pack(np.array(lengths, np.int64), capacity)
    seen = [np.zeros(length, int) for length in lengths]
    for row in map(packed.row, range(packed.num_rows)):
        assert 0 < sum(length for _, _, length in row) <= capacity
        for item, start, length in row:
            assert start + length <= lengths[item]
            seen[item][start : start + length] += 1
    assert all((counts == 1).all() for counts in seen)


@given(lengths=LENGTHS, capacity=st.integers(1, 25))
def test_best_fit_cuts_only_at_multiples_of_the_row(lengths: list[int], capacity: int) -> None:
    packed = BestFitPacking.Config().build().pack(np.array(lengths, np.int64), capacity)
    assert (packed.start % capacity == 0).all()
    remaining = np.array(lengths)[packed.item] - packed.start
    assert (packed.length == np.minimum(remaining, capacity)).all()
    # No two rows could be joined: best fit would have used the room.
    fill = np.add.reduceat(packed.length, packed.row_offsets[:-1]) if len(lengths) else np.zeros(0, int)
    smallest = np.sort(fill)[:2]
    assert len(smallest) < 2 or smallest.sum() > capacity


@given(lengths=LENGTHS, capacity=st.integers(1, 25))
def test_concatenation_fills_all_rows_but_the_last(lengths: list[int], capacity: int) -> None:
    packed = ConcatenatedPacking.Config().build().pack(np.array(lengths, np.int64), capacity)
    assert packed.num_rows == -(-sum(lengths) // capacity)
    order = [(item, start) for row in range(packed.num_rows) for item, start, _ in packed.row(row)]
    assert order == sorted(order)


def test_best_fit_wastes_little() -> None:
    lengths = np.random.RandomState(0).geometric(1 / 300, 3000).astype(np.int64)
    packed = BestFitPacking.Config().build().pack(lengths, 1024)
    assert lengths.sum() / (packed.num_rows * 1024) > 0.995


@given(lengths=LENGTHS, capacity=st.integers(1, 25))
def test_first_fit_is_the_textbook_s(lengths: list[int], capacity: int) -> None:
    packed = FirstFitPacking.Config().build().pack(np.array(lengths, np.int64), capacity)
    rooms: list[int] = []
    expected: dict[int, list[int]] = {}
    for item, length in enumerate(lengths):
        if length % capacity:
            row = next((r for r, room in enumerate(rooms) if room >= length % capacity), len(rooms))
            rooms += [capacity] * (row == len(rooms))
            rooms[row] -= length % capacity
            expected.setdefault(row, []).append(item)
    full = sum(length // capacity for length in lengths)
    rows = [[item for item, _, _ in packed.row(row)] for row in range(full, packed.num_rows)]
    assert rows == [expected[row] for row in range(len(rooms))]


def test_on_a_heavy_tail_best_fit_fills_97_in_a_hundred_and_first_fit_nearly_as_much() -> None:
    # Log-normal with a standard deviation of 1.2: the mean is twice the median, one document in fifty is 12 times as
    # long, and some are longer than a row.
    lengths = np.maximum(1, np.random.RandomState(0).lognormal(6.2, 1.2, 20_000)).astype(np.int64)
    fill = {}
    for kind in (BestFitPacking, FirstFitPacking):
        # In windows, as a source packs them.
        windows = [kind.Config().build().pack(lengths[i : i + 4096], 2048) for i in range(0, len(lengths), 4096)]
        fill[kind] = lengths.sum() / (sum(rows.num_rows for rows in windows) * 2048)
    assert fill[BestFitPacking] > 0.99
    assert 0.97 < fill[FirstFitPacking] <= fill[BestFitPacking]
    # Not because there is nothing to pack: a row a document, cut where it is longer, would be this full.
    assert lengths.sum() / (-(-lengths // 2048).sum() * 2048) < 0.5
    pareto = np.minimum(100_000, 50 * (1 + np.random.RandomState(1).pareto(1.1, 20_000))).astype(np.int64)
    packed = BestFitPacking.Config().build().pack(pareto[:4096], 2048)
    assert pareto[:4096].sum() / (packed.num_rows * 2048) > 0.97
