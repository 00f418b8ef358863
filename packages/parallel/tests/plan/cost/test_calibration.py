"""A share of peak explains the step it was found from, and no step needs more than the peak."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kanawa_parallel.plan.cost.calibration import published, published_steps, share_of_peak

SECONDS = st.floats(1e-3, 1e3)


@given(known=SECONDS, unestimated=SECONDS, slower=st.floats(1.0, 10.0))
def test_at_its_share_an_estimate_takes_the_published_time(known, unestimated, slower):
    published_seconds = known + unestimated * slower
    share = share_of_peak(published_seconds, known + unestimated, unestimated)
    assert known + unestimated / share == pytest.approx(published_seconds)
    assert 0 < share <= 1


@given(known=SECONDS, unestimated=SECONDS)
def test_a_step_that_was_quicker_than_any_estimate_reached_the_peak(known, unestimated):
    assert share_of_peak(known / 2, known + unestimated, unestimated) == 1.0


def test_published_steps_come_from_plugins(job):
    assert published("plan-job", "box-4").source == "a paper of straw"
    assert published("plan-job", "box-2") is None
    assert published("another", "box-4") is None
    assert {step.experiment for step in published_steps()} >= {"plan-job"}
