"""Row r is a function of r alone: any order of asking, any window, any epoch."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa_runtime.data.errors import RowError
from kanawa_runtime.data.packing import BestFitPacking, ConcatenatedPacking, Packing
from kanawa_runtime.data.windows import Piece, RowPlan

PLANS = st.fixed_dictionaries(
    {
        "lengths": st.lists(st.integers(1, 40), min_size=1, max_size=40),
        "capacity": st.integers(1, 16),
        "window_documents": st.integers(1, 50),
        "seed": st.integers(0, 2**32),
        "shuffle": st.booleans(),
        "packing": st.sampled_from([BestFitPacking, ConcatenatedPacking]),
    }
)


def build(
    lengths: list[int],
    capacity: int = 8,
    packing: type[Packing] = BestFitPacking,
    *,
    window_documents: int = 4,
    seed: int = 0,
    shuffle: bool = True,
    epochs: int | None = None,
) -> RowPlan:
    return RowPlan(
        np.array(lengths, np.int64),
        capacity,
        packing.Config().build(),
        window_documents=window_documents,
        seed=seed,
        shuffle=shuffle,
        epochs=epochs,
    )


@settings(deadline=None)
@given(PLANS)
def test_each_epoch_covers_every_prediction_once(arguments: dict) -> None:
    plan = build(**arguments)
    for epoch in range(2):
        rows = range(plan.rows_through(epoch), plan.rows_through(epoch + 1))
        counts: Counter[tuple[int, int]] = Counter()
        for piece in (piece for row in rows for piece in plan.row(row)):
            counts.update((piece.document, piece.start + i) for i in range(piece.length))
        expected = {(d, i) for d, length in enumerate(arguments["lengths"]) for i in range(length)}
        assert set(counts) == expected
        assert set(counts.values()) == {1}


@settings(deadline=None)
@given(PLANS, st.randoms())
def test_any_order_of_asking_gives_the_same_rows(arguments: dict, random: object) -> None:
    total = build(**arguments).rows_through(3)
    forwards = build(**arguments)
    expected = [forwards.row(index) for index in range(total)]
    order = list(range(total))
    random.shuffle(order)  # type: ignore[attr-defined]
    scattered = build(**arguments)
    assert {index: scattered.row(index) for index in order} == dict(enumerate(expected))
    assert build(**arguments, epochs=3).num_rows == total


def test_shuffling_depends_on_seed_and_epoch() -> None:
    lengths = [8] * 40
    plan = build(lengths, window_documents=100)
    first, second = ([plan.row(e * 40 + i) for i in range(40)] for e in range(2))
    assert first != second and sorted(first) == sorted(second)
    other = build(lengths, window_documents=100, seed=1)
    assert [other.row(i) for i in range(40)] != first
    in_order = build(lengths, shuffle=False)
    assert [in_order.row(i) for i in range(40)] == [[Piece(i, 0, 8)] for i in range(40)]


def test_a_long_documents_rows_are_spread_over_the_window() -> None:
    plan = build([800, *[8] * 100], window_documents=200)
    documents = [plan.row(index)[0].document for index in range(200)]
    runs = 1 + sum(a != b for a, b in zip(documents, documents[1:], strict=False))
    assert runs > 50


def test_rows_outside_the_sequence() -> None:
    plan = build([8, 8], epochs=2)
    with pytest.raises(IndexError, match="row 4 doesn't exist: the sequence has rows 0 to 3"):
        plan.row(4)
    with pytest.raises(IndexError, match="row -1 doesn't exist: rows count from 0"):
        build([8]).row(-1)


def test_no_document_makes_no_plan() -> None:
    with pytest.raises(RowError, match="there is no document"):
        build([])
