"""Changes that are offered were compiled, do what they say, and are in order of intrusion."""

import dataclasses

import pytest
from kanawa_parallel.plan.programs.decode import DECODE
from kanawa_parallel.plan.programs.request import PlanRequest
from kanawa_parallel.plan.targets.plan import plan_target
from kanawa_parallel.plan.targets.suggest import candidates, suggestions


@pytest.fixture
def too_large(planned):
    """The job on a device that is a little too small for its temporaries, and not for what it keeps."""
    composition, report = planned("box-4")
    kept = sum(report.memory[kind] for kind in ("parameters", "optimizer", "inputs", "alignment"))
    return composition, dataclasses.replace(
        report, fits=False, memory_limit_bytes=int(kept + report.memory["code"] + 1)
    )


def test_the_least_intrusive_change_comes_first(too_large):
    changes = list(candidates(*too_large))
    assert changes[0] == ["remat:policy=full"]
    assert all(change[0] == "remat:policy=full" for change in changes if "accumulate" in " ".join(change))
    assert changes[-1][-1] == "offload-optimizer"
    assert not any("mesh" in part for change in changes for part in change), "parameters are split over all already"


def test_a_batch_is_split_only_in_ways_that_still_divide(too_large, job):
    counts = [int(part.rpartition("=")[2]) for change in candidates(*too_large) for part in change if "accum" in part]
    assert counts == [2]
    assert all(job.ROWS % count == 0 and job.ROWS // count % 4 == 0 for count in counts)


def test_a_mesh_that_leaves_parameters_whole_is_offered_as_split(planned):
    composition, report = planned("box-4", 'mesh:axes={"data":4}')
    small = dataclasses.replace(report, fits=False, memory_limit_bytes=report.memory["parameters"])
    changes = list(candidates(composition, small))
    assert changes[0] == ['mesh:axes={"fsdp":-1}']
    assert ['mesh:axes={"fsdp":-1}', "remat:policy=full"] in changes


def test_decoding_can_only_be_split_further(planned):
    composition, report = planned("box-4", program=DECODE)
    assert list(candidates(composition, dataclasses.replace(report, fits=False))) == []


def test_what_is_offered_was_compiled_and_fits(planned):
    """On 60 kB the plain step is too large by a little: what is offered says what compiling it again says."""
    composition, report = planned("tight-4", overrides=["batch_size=96"])
    assert not report.fits
    offered = suggestions(report, composition, PlanRequest("plan-job", overrides=("batch_size=96",)))
    assert offered
    for suggestion in offered[:2]:
        modifiers = [part for part in suggestion.change.split("--modify ") if part]
        (changed,) = PlanRequest("plan-job", [m.strip() for m in modifiers], ["batch_size=96"]).composed(["tight-4"])
        again = plan_target(changed).report
        assert again.memory_per_device_bytes == suggestion.memory_per_device_bytes
        assert again.fits == suggestion.fits == (again.memory_per_device_bytes <= report.memory_limit_bytes)
        assert (suggestion.step_seconds is None) == (not suggestion.fits)
    assert [s.fits for s in offered] == sorted((s.fits for s in offered), reverse=True)
