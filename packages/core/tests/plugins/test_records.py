"""Records refuse what can't be, when a plugin makes them and not when a plan reads them."""

import dataclasses

import pytest
from kanawa.plugins import Calibration, DeviceSpec, FittedStep, PublishedStep

CHIP = DeviceSpec(
    name="chip",
    platform="gpu",
    memory_bytes=2**30,
    memory_bandwidth=1e12,
    link_bandwidth=1e11,
    network_bandwidth=1e10,
    chips_per_host=1,
    source="made for tests",
)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("platform", "an abacus", "chip: platform 'an abacus' is no short word"),
        ("counted", "beads", "chip: counted 'beads'"),
        ("chips_per_host", 0, "chip: chips_per_host must be at least 1"),
        ("torus_dimensions", 4, "chip: torus_dimensions must be 0 to 3"),
        ("clock_hz", 0.0, "chip: clock_hz must be positive, or None"),
        ("source", "", "chip: source must cite where the figures come from"),
    ],
)
def test_a_figure_that_cannot_be_is_named(field, value, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CHIP, **{field: value})


def test_a_published_step_needs_a_time_and_a_source():
    with pytest.raises(ValueError, match="big on v5p-512: seconds must be positive"):
        PublishedStep(experiment="big", target="v5p-512", seconds=0.0, source="a paper")
    with pytest.raises(ValueError, match="source must cite"):
        PublishedStep(experiment="big", target="v5p-512", seconds=1.0, source="")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"compute_share": 1.5}, "chip: compute_share must be above 0 and at most 1"),
        ({"network_share": 0.0}, "chip: network_share must be above 0 and at most 1"),
        ({"estimate_factor": 0.0}, "chip: estimate_factor must be positive"),
        ({"launch_seconds": -1.0}, "chip: costs must not be negative"),
        ({"interval": (1.2, 0.8)}, r"chip: the interval \(1.2, 0.8\) must be two positive numbers in order"),
    ],
)
def test_a_calibration_that_cannot_be_is_named(values, message):
    with pytest.raises(ValueError, match=message):
        Calibration(devices=("chip",), **values)


def test_a_fitted_step_has_three_times():
    with pytest.raises(ValueError, match="big on v5p-512: held_out_seconds must be positive"):
        FittedStep(
            workload="big",
            target="v5p-512",
            seconds=1.0,
            rounding_seconds=0.05,
            planned_seconds=1.0,
            held_out_seconds=0.0,
            source="a paper",
        )
