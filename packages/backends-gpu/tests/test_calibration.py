"""Every GPU has a calibration; its interval holds what was published, and no figure's rounding decides it."""

import pytest
from kanawa_backends_gpu.calibration import CALIBRATIONS
from kanawa_backends_gpu.device import DEVICES

STEPS = [(table, step) for table in CALIBRATIONS for step in table.steps]


def test_the_table_is_keyed_by_compiler_and_device():
    keys = [(table.compiler, name) for table in CALIBRATIONS for name in table.devices]
    assert len(keys) == len(set(keys))
    assert all(table.compiler.startswith("jaxlib 0.") for table in CALIBRATIONS)
    assert {name for _, name in keys} == {device.name for device in DEVICES}


@pytest.mark.parametrize(("table", "step"), STEPS, ids=lambda x: getattr(x, "target", "")[:40])
def test_the_interval_holds_what_was_published(table, step):
    low, high = table.interval
    assert low * step.planned_seconds <= step.seconds <= high * step.planned_seconds
    assert low * step.held_out_seconds <= step.seconds <= high * step.held_out_seconds


def test_what_was_not_fitted_is_wider():
    fitted = [high / low for table in CALIBRATIONS if table.steps for low, high in [table.interval]]
    assert all(
        table.interval[1] / table.interval[0] > max(fitted) and table.uncalibrated == ("all of it",)
        for table in CALIBRATIONS
        if not table.steps
    )


@pytest.mark.parametrize(("table", "step"), STEPS, ids=lambda x: getattr(x, "target", "")[:40])
def test_the_rounding_of_one_figure_moves_a_plan_by_less_than_two_percent(table, step):
    # What a plan of the step itself follows of a change in its published time: the rest is held by the other steps.
    missed = step.seconds - step.held_out_seconds
    followed = (step.planned_seconds - step.held_out_seconds) / missed
    assert abs(followed) < 1
    assert followed * step.rounding_seconds / step.seconds < 0.02
