"""What a run leaves out, and when a loss is a spike."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kanawa_runtime.train.batches import LeftOut
from kanawa_runtime.train.step_watch import Spikes


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 10)), max_size=4))
def test_every_batch_is_taken_once_or_left_out(returns):
    """Steps and the stream agree, after any sequence of returns, and nothing that was left out comes back."""
    left_out = LeftOut()
    for after, more in returns:
        before = left_out
        gone = {before.batch_of(step) for step in range(after, after + more)}
        left_out = before.with_steps(after, after + more)
        taken = [left_out.batch_of(step) for step in range(60)]
        assert not gone & set(taken)
        missing = set(range(taken[-1])) - set(taken)
        assert missing >= gone
    # Though ranges that touch become one.
    assert left_out.returns == len(returns)
    stream = list(left_out.included(iter(range(100)), 0))
    assert stream[:40] == [left_out.batch_of(step) for step in range(40)]
    for step in (0, 7, 30):
        number = left_out.batch_of(step)
        assert next(left_out.included(iter(range(number, 100)), number)) == number


def test_a_spike_is_far_above_what_was_usual():
    rng = random.Random(0)
    spikes = Spikes(factor=10, window=20)
    for _ in range(200):
        assert spikes.take(2.0 + rng.gauss(0, 0.05)) is None
    assert spikes.take(3.5) == pytest.approx(2.35, abs=0.2)
    # It isn't taken for usual now, and a slow rise is none.
    assert spikes.take(3.5) is not None
    for index in range(400):
        assert spikes.take(2.0 + index * 0.005) is None


def test_before_there_is_anything_usual_nothing_is_a_spike():
    spikes = Spikes(factor=3, window=10)
    assert [spikes.take(loss) for loss in (1.0, 50.0, 1.0)] == [None] * 3
    assert Spikes(factor=None, window=1).take(1e9) is None
