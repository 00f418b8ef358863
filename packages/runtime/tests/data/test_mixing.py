"""The order of a mixture: exact shares, no row twice or left out, through every change, in any order of asking."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa_runtime.data.mixing import MixedOrder, Phase, Shares, phases_after

WEIGHTS = st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any)


def order(phases, limits=None, *, block_rows=16, seed=0, shuffle=True, when_exhausted="stop"):
    limits = limits or {}
    return MixedOrder(
        [
            Phase(row, tuple(Fraction(w) for w in weights), "start" if row == 0 else "schedule")
            for row, weights in phases
        ],
        limits.get,
        block_rows=block_rows,
        seed=seed,
        shuffle=shuffle,
        when_exhausted=when_exhausted,
    )


@given(WEIGHTS, st.integers(0, 5000))
def test_counts_are_near_the_weights_and_never_fall(weights: list[int], rows: int) -> None:
    shares = Shares([Fraction(w) for w in weights])
    now, after = shares.counts(rows), shares.counts(rows + 1)
    assert sum(now) == rows and sum(after) == rows + 1
    assert sorted(b - a for a, b in zip(now, after, strict=True)) == [0] * (len(weights) - 1) + [1]
    for count, weight in zip(now, weights, strict=True):
        # Three levels of a tree over six sources.
        assert abs(count - rows * weight / sum(weights)) <= 1 + 3 / 2
        assert weight or not count


@settings(deadline=None)
@given(
    phases=st.lists(st.tuples(st.integers(1, 90), WEIGHTS), max_size=3),
    first=WEIGHTS,
    limits=st.lists(st.one_of(st.none(), st.integers(0, 40)), min_size=6, max_size=6),
    block_rows=st.integers(1, 20),
    shuffle=st.booleans(),
    when_exhausted=st.sampled_from(["stop", "drop"]),
    random=st.randoms(),
)
def test_every_source_is_read_in_order_without_a_gap(phases, first, limits, random, **options) -> None:
    width = len(first)
    later = sorted({row: (w * 6)[:width] for row, w in phases}.items())
    later = [(row, weights) for row, weights in later if any(weights)]
    make = lambda: order([(0, first), *later], dict(enumerate(limits)), **options)  # noqa: E731
    asked = make()
    end = 200 if asked.num_rows is None else min(200, asked.num_rows)
    rows = [asked.at(index) for index in range(end)]
    seen: Counter[int] = Counter()
    for index, (source, row) in enumerate(rows):
        assert asked.taken(index) == [seen[s] for s in range(width)]
        assert row == seen[source], "each source's rows come in their own order"
        assert limits[source] is None or row < limits[source]
        seen[source] += 1
    places = list(range(end))
    random.shuffle(places)
    scattered = make()
    assert all(scattered.at(index) == rows[index] for index in places)
    if asked.num_rows is not None:
        with pytest.raises(IndexError, match="the sequence has rows 0 to"):
            asked.at(asked.num_rows)


def test_shares_are_exact_at_the_end_of_each_block() -> None:
    asked = order([(0, [7, 2, 1])], block_rows=20)
    for block in range(1, 50):
        assert asked.taken(20 * block) == [14 * block, 4 * block, 2 * block]
    # Far away without what lies before it.
    assert order([(0, [7, 2, 1])], block_rows=20).taken(20 * 10**15) == [14 * 10**15, 4 * 10**15, 2 * 10**15]


def test_weights_change_at_their_rows_and_shuffling_depends_on_the_seed() -> None:
    asked = order([(0, [1, 1]), (37, [0, 1])])
    assert {asked.at(row)[0] for row in range(37, 200)} == {1}
    first, other = ([order([(0, [1, 1])], seed=seed).at(r)[0] for r in range(64)] for seed in range(2))
    assert first != other and sum(first) == sum(other) == 32
    even = [order([(0, [3, 1])], shuffle=False).at(r)[0] for r in range(16)]
    assert even == [0, 0, 1, 0] * 4 or even == [0, 1, 0, 0] * 4


def test_an_exhausted_source_ends_the_rows_or_leaves_its_weight_to_the_others() -> None:
    limits = {0: 10}
    stops = order([(0, [1, 1, 2])], limits)
    assert stops.num_rows is not None and 37 <= stops.num_rows <= 45 and stops.taken(stops.num_rows)[0] == 10
    drops = order([(0, [1, 1, 2])], limits, when_exhausted="drop")
    assert drops.num_rows is None
    assert [(span.reason, span.dropped) for span in drops.spans] == [("start", ()), ("exhausted", (0,))]
    before, after = (drops.taken(row) for row in (stops.num_rows, stops.num_rows + 300))
    assert [b - a for a, b in zip(before, after, strict=True)] == [0, 100, 200]
    everything = order([(0, [1, 1, 2])], {0: 10, 1: 3, 2: 50}, when_exhausted="drop")
    assert everything.num_rows == 63


def test_a_restart_with_other_weights_keeps_what_was_consumed() -> None:
    first = order([(0, [3, 1])])
    past = [Phase(0, (Fraction(3), Fraction(1)), "start")]
    now = [Phase(0, (Fraction(1), Fraction(3)), "start"), Phase(90, (Fraction(1), Fraction(0)), "schedule")]
    phases = phases_after(53, past, now)
    assert [(p.first_row, p.reason) for p in phases] == [(0, "start"), (53, "restart"), (90, "schedule")]
    resumed = MixedOrder(phases, lambda s: None, block_rows=16, seed=0, shuffle=True, when_exhausted="stop")
    assert [resumed.at(row) for row in range(53)] == [first.at(row) for row in range(53)]
    assert resumed.taken(53) == first.taken(53)
    # The same weights change nothing, wherever the run stopped; before row 0 of a run there is no past.
    assert phases_after(53, past, past) == past
    assert [p.first_row for p in phases_after(0, [], now)] == [0, 90]
