"""The interval of Trainium's calibration holds what was published, and one of two steps gives the other within 5 %."""

import pytest
from kanawa_backends_neuron.calibration import CALIBRATIONS

STEPS = [(table, step) for table in CALIBRATIONS for step in table.steps]


@pytest.mark.parametrize(("table", "step"), STEPS, ids=lambda x: getattr(x, "workload", "")[:12])
def test_the_interval_holds_what_was_published(table, step):
    low, high = table.interval
    for planned in (step.planned_seconds, step.held_out_seconds):
        assert low * planned <= step.seconds <= high * planned
    # A lone step's other one is of another generation.
    near = (step.planned_seconds, step.held_out_seconds)[: len(table.steps)]
    assert near == pytest.approx((step.seconds,) * len(near), rel=0.05)
