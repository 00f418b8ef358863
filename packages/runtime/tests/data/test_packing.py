"""Every position of every item exactly once, no row too long, little waste."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kanawa_runtime.data.packing import BestFitPacking, ConcatenatedPacking, Packing

PACKINGS = [BestFitPacking, ConcatenatedPacking]
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
