"""From a config to a report, all of it real: composed, compiled for eight devices of this processor, read, counted."""

import dataclasses
import json

import pytest
from kanawa_parallel.plan.programs.decode import DECODE
from kanawa_parallel.plan.report.report import Report


@pytest.fixture
def report(planned):
    return planned("box-4")[1]


def test_a_report_of_four_devices(job, report):
    """Matrices are split in four, scales are whole; the batch is split; what is counted is what the model asks for."""
    matrices = job.VOCAB * job.WIDTH + job.LAYERS * job.WIDTH**2
    scales = job.LAYERS * job.WIDTH
    held = 4 * (matrices / 4 + scales)
    assert (report.devices, report.chips, report.mesh) == (4, 4, {"fsdp": 4})
    assert report.compiled and report.fits
    assert report.memory["parameters"] == held == report.memory["optimizer"]
    assert report.memory["inputs"] == 3 * 4 * job.ROWS * job.LENGTH / 4
    assert abs(report.arguments_error) < 0.01
    assert report.memory_per_device_bytes == report.memory["total"] <= report.memory_limit_bytes == 2**30
    assert report.tokens_per_step == job.ROWS * job.LENGTH
    assert report.model_flops_per_step == job.FLOPS_PER_TOKEN * report.tokens_per_step
    assert sum(row.parameters for row in report.modules) == held
    assert {row.path for row in report.modules} >= {"model.stack.layer"}


def test_weights_are_gathered_over_the_devices_own_link(report):
    gathers = [row for row in report.communication if row.kind == "all-gather"]
    assert gathers and {(row.axes, row.link) for row in gathers} == {("fsdp", "wire")}
    assert all(0 <= row.exposed_seconds <= row.seconds * 1.0001 for row in report.communication)


def test_seconds_add_up_and_give_mfu_and_tokens(report):
    parts = report.step_seconds_by
    assert report.step_seconds > 0
    assert report.step_seconds == pytest.approx(sum(parts.values()))
    assert parts["pipeline_bubble"] == 0
    assert report.mfu == pytest.approx(report.model_flops_per_step / (1e11 * 4 * report.step_seconds))
    assert report.tokens_per_second == pytest.approx(report.tokens_per_step / report.step_seconds)
    assert parts[report.binds] == max(parts.values())


def test_a_device_gets_the_calibration_of_the_nearest_compiler_in_a_wider_interval(planned):
    _, slow = planned("slow-4")
    assert (slow.calibration["compiler"], slow.calibration["compute_share"]) == ("jaxlib 0.1.0", 0.25)
    assert slow.calibration["said"].startswith(
        "calibrated on 1 published step of this kind (jaxlib 0.1.0); interval widened, for this is jaxlib "
    )
    assert slow.calibration["said"].endswith("; not calibrated: wire")
    assert slow.calibration["interval"] == pytest.approx([0.9 / 1.1, 1.2 * 1.1])
    low, high = slow.step_seconds_between
    assert low == pytest.approx(slow.step_seconds * 0.9 / 1.1) and high == pytest.approx(slow.step_seconds * 1.2 * 1.1)


def test_a_calibration_slows_a_step(planned):
    _, plain = planned("box-4")
    _, slow = planned("slow-4")
    assert slow.estimated_seconds > plain.estimated_seconds  # A collective takes a millisecond to begin.
    for part in ("compute", "memory"):
        assert slow.step_seconds_by[part] == pytest.approx(4 * plain.step_seconds_by[part])


def test_what_no_step_was_fitted_for_says_so_and_is_the_figures_at_best(planned):
    _, plain = planned("box-4")
    assert plain.calibration["said"].startswith("not calibrated: no published step of this kind was fitted")
    assert plain.step_seconds_between == (plain.step_seconds, 2.5 * plain.step_seconds)
    assert plain.step_seconds == plain.estimated_seconds


def test_json_reads_back_as_the_same_report(report):
    written = json.loads(json.dumps(report.as_json()))
    assert Report.from_json(written) == report
    assert written["memory_margin_bytes"] == report.memory_limit_bytes - report.memory_per_device_bytes


def test_a_published_step_is_compared_with_the_experiment_as_it_stands_only(planned):
    _, standing = planned("box-4")
    assert standing.published_seconds == 0.5
    assert standing.published_error == pytest.approx(standing.step_seconds / 0.5 - 1)
    _, elsewhere = planned("box-2")
    _, modified = planned("box-4", "remat:policy=full")
    _, overridden = planned("box-4", overrides=["batch_size=48"])
    for changed in (elsewhere, modified, overridden):
        assert changed.published_seconds is None
        assert changed.published_error is None


def test_what_does_not_fit_has_no_time(planned):
    _, report = planned("tight-4")
    assert not report.fits
    assert report.memory_per_device_bytes > report.memory_limit_bytes == 24_000
    assert (report.step_seconds, report.mfu, report.binds, report.tokens_per_second) == (None,) * 4
    assert report.step_seconds_by == {}
    assert report.flops_per_step > 0
    written = report.as_json()
    assert (written["step_seconds"], written["mfu"], written["fits"]) == (None, None, False)
    assert Report.from_json(json.loads(json.dumps(written))) == report


def test_four_stages_and_four_microbatches_wait_three_ticks_of_seven(planned):
    _, report = planned("box-4", 'mesh:axes={"stage":4}', "pipeline:microbatches=4")
    parts = report.step_seconds_by
    looped = parts["compute"] + parts["memory"] + parts["pipeline_bubble"]
    assert report.mesh == {"stage": 4}
    assert parts["pipeline_bubble"] / looped == pytest.approx(3 / 7)


def test_decoding_counts_one_token_a_row_and_its_caches(job, planned):
    _, report = planned("box-4", program=DECODE)
    assert report.program == DECODE
    assert report.tokens_per_step == job.ROWS
    assert report.memory["caches"] == 4 * job.LAYERS * job.ROWS * job.WIDTH / 4
    assert "optimizer" not in report.memory


@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_a_target_without_a_compiler_is_planned_from_its_figures_and_says_so(planned):
    _, report = planned("distant-4")
    assert not report.compiled and report.quick
    assert report.note.startswith("no public compiler is for distant: a quick estimate from the traced program")
    assert report.fits and report.step_seconds


def test_recomputation_costs_flops_and_no_model_flops(planned):
    _, plain = planned("box-4")
    _, full = planned("box-4", "remat:policy=full")
    assert full.flops_per_step > plain.flops_per_step
    assert full.model_flops_per_step == plain.model_flops_per_step


def test_measured_figures_replace_the_targets(job, planned):
    from kanawa_parallel.plan.compiled.compilation import compile_program
    from kanawa_parallel.plan.compiled.count import compiled_report

    composition, plain = planned("box-4")
    half = dataclasses.replace(composition.target.device, memory_bandwidth=5e10, peak_flops={"float32": 5e10})
    slower = compiled_report(compile_program(composition, "train_step"), half)
    busy = [report.step_seconds_by["compute"] + report.step_seconds_by["memory"] for report in (plain, slower)]
    assert busy[1] == pytest.approx(2 * busy[0])
    assert slower.flops_per_step == plain.flops_per_step
