"""Which calibration a device gets, by its name and the installed compilers; and what it makes of the figures."""

import dataclasses

import pytest
from kanawa.composition.target import parse_target
from kanawa.plugins import Calibration
from kanawa_parallel.plan.cost.calibration import (
    OTHER_COMPILER,
    at_reached_figures,
    calibration_for,
    published_step,
    published_steps,
)


@pytest.fixture
def slow(job):
    return parse_target("slow-4").device


@pytest.mark.parametrize(
    ("installed", "compiler"),
    [("0.1.0", "jaxlib 0.1.0"), ("0.11.2", "jaxlib 0.1.0"), ("6.9.0", "jaxlib 7.0.0"), ("8.0.1", "jaxlib 7.0.0")],
)
def test_the_nearest_compilers_calibration_is_taken(slow, installed, compiler):
    choice = calibration_for(slow, {"jaxlib": installed, "libtpu": "0.0.1"})
    assert choice.calibration.compiler == compiler
    same = compiler == f"jaxlib {installed}"
    assert choice.note == ("" if same else f"interval widened, for this is jaxlib {installed}")
    widened = 1.0 if same else OTHER_COMPILER
    assert choice.calibration.interval == pytest.approx((0.9 / widened, 1.2 * widened))


def test_without_the_compiler_a_calibration_is_another_compilers(slow):
    choice = calibration_for(slow, {})
    assert "interval widened, for this is another compiler" in choice.summary


def test_a_device_that_no_table_has_is_at_its_figures(job):
    choice = calibration_for(parse_target("box-4").device, {"jaxlib": "0.1.0"})
    assert choice.calibration == Calibration()
    assert choice.summary.startswith("not calibrated")
    assert choice.as_json()["steps"] == []


def test_every_figure_is_reduced_to_what_is_reached(torus):
    shares = {"compute_share": 0.5, "memory_share": 0.4, "link_share": 0.3, "network_share": 0.2}
    clocked = dataclasses.replace(torus, clock_hz=1e9)
    less = at_reached_figures(clocked, Calibration(**shares, estimate_factor=1.25))
    assert less.peak_flops["bfloat16"] == torus.peak_flops["bfloat16"] / 2
    assert less.memory_bandwidth == pytest.approx(torus.memory_bandwidth * 0.4)
    assert less.link_bandwidth == pytest.approx(torus.link_bandwidth * 0.3)
    assert less.network_bandwidth == pytest.approx(torus.network_bandwidth * 0.2)
    assert less.clock_hz == pytest.approx(0.8e9)
    assert at_reached_figures(torus, Calibration()) == torus


def test_published_steps_come_from_plugins(job):
    assert published_step("plan-job", "box-4").source == "a paper of straw"
    assert published_step("plan-job", "box-2") is None
    assert published_step("another", "box-4") is None
    assert {step.experiment for step in published_steps()} >= {"plan-job"}
