"""A quick plan of a pipeline: a stage's own work, its idle ticks, and layers that don't divide."""

import dataclasses

import pytest
from kanawa_parallel.plan.programs.request import PlanRequest
from kanawa_parallel.plan.quick.estimate import estimated, quick_report
from kanawa_parallel.plan.quick.stage import one_stage


def composed(*modifiers, target="box-4"):
    (composition,) = PlanRequest("plan-job", modifiers, []).composed([target])
    return composition


def piped(microbatches, *others):
    return composed('mesh:axes={"stage":4}', f"pipeline:microbatches={microbatches}", *others)


def test_a_stage_has_its_layers_and_one_microbatch_on_its_own_devices(job):
    stage = one_stage(piped(6))
    config = stage.composition.config
    assert (stage.stages, stage.microbatches, stage.layers, stage.layers_here) == (4, 6, 4, 1)
    assert (config.model.stack.num_layers, config.batch_size) == (1, 24 // 6)
    assert stage.composition.target.jax_devices == 1 and "stage" not in config.execution.mesh.axes
    assert one_stage(composed('mesh:axes={"fsdp":4}')) is None


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_a_strategy_that_runs_the_stages_has_one_microbatch_too(job, schedule):
    composition = composed('mesh:axes={"stage":4}', f"pipeline:microbatches=6,schedule={schedule}")
    config = one_stage(composition).composition.config
    assert (config.batch_size, config.gradients.microbatches) == (24 // 6, 1)
    times = estimated(composition, "train_step").times
    tick = sum(seconds.total for path, seconds in times.alone.by_path if "stack" in path)
    idle = 3 if schedule == "1f1b" else 3 * 3 / 4
    assert (6 + idle) * tick <= times.seconds.total * 1.0001 < (6 + idle) * tick * 1.5


def test_idle_ticks_are_those_of_the_schedule(job):
    """Of M microbatches and S - 1 idle ticks the loops over layers take M + S - 1 ticks; each microbatch is alike."""
    times = {}
    for microbatches in (4, 12):
        composition = piped(microbatches)
        stage = one_stage(composition)
        alone = estimated(stage.composition, "train_step").times
        tick = sum(seconds.total for path, seconds in alone.by_path if "stack" in path)
        rest = alone.seconds.total - tick
        whole = estimated(composition, "train_step").times.seconds.total
        times[microbatches] = whole, tick
        assert (microbatches + 3) * tick < whole <= (microbatches + 3) * tick + microbatches * rest * 1.01
    # A third of the rows takes at most a third of the time.
    assert times[12][1] <= times[4][1]


def test_the_report_is_of_the_whole_mesh(job):
    report = quick_report(piped(4), "train_step")
    assert (report.mesh, report.devices) == ({"stage": 4}, 4)
    parts = report.step_seconds_by
    looped = parts["compute"] + parts["memory"] + parts["pipeline_bubble"]
    assert parts["pipeline_bubble"] / looped == pytest.approx(3 / 7)
    assert report.memory["parameters"] > 0 and report.tokens_per_step == 24 * 8


def test_layers_that_dont_divide_are_planned(job):
    composition = piped(4)
    config = composition.config.clone()
    config.model.stack.set(num_layers=6)
    config.freeze()
    uneven = dataclasses.replace(composition, config=config, model=config.model.build())
    assert one_stage(uneven).layers_here == 2
    assert (
        estimated(uneven, "train_step").times.seconds.total > estimated(composition, "train_step").times.seconds.total
    )
