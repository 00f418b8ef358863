"""What lies in memory at the fullest moment has names, and they add up, under full rematerialisation too."""

import pytest
from kanawa_parallel.plan.compiled.compilation import compile_program
from kanawa_parallel.plan.compiled.count import compiled_report
from kanawa_parallel.plan.memory.liveness import find_peak
from kanawa_parallel.plan.programs.request import PlanRequest
from kanawa_parallel.plan.quick.estimate import quick_report
from kanawa_parallel.plan.read.attribution import UNNAMED


@pytest.mark.parametrize("policy", ["full", "none"])
def test_named_and_unnamed_add_up_and_little_is_unnamed(planned, job, policy):
    composition, _ = planned("box-2", f"remat:policy={policy}", overrides=["batch_size=96"])
    compilation = compile_program(composition, "train_step")
    held = compiled_report(compilation).held
    fullest = find_peak(compilation.assignment, compilation.live_ranges)
    assert sum(row.bytes for row in held) == fullest.bytes
    assert fullest.bytes == pytest.approx(fullest.reserved_bytes, rel=0.05)
    unnamed = sum(row.bytes for row in held if row.module == UNNAMED)
    assert unnamed < 0.05 * fullest.bytes


def test_a_quick_plans_values_are_all_its_temporaries_and_stacked_ones_bear_their_layers_names(job):
    (composition,) = PlanRequest("plan-job", ["remat:policy=none"], ["batch_size=96"]).composed(["box-2"])
    report = quick_report(composition, "train_step")
    assert sum(row.bytes for row in report.held) == pytest.approx(report.memory["temporaries"], abs=len(report.held))
    saved = [row for row in report.held if "saved for each layer" in row.value]
    assert saved and all(row.module.startswith("model.stack") for row in saved)
