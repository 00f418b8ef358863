"""Plans of reinforcement learning: all parts of a step, on one device and on a mesh, in JSON and as text."""

import dataclasses

import pytest
from kanawa_parallel.plan.programs.request import PlanRequest
from kanawa_parallel.plan.report.report import Report
from kanawa_parallel.plan.rollout_step import PARTS, render_rollouts
from kanawa_parallel.plan.targets.plan import finished_report, plan_target

ENGINE = "rollouts.engine.max_sequences=128"


def planned(target, *overrides, modifiers=()):
    (composition,) = PlanRequest("grpo-demo", modifiers, overrides).composed([target])
    return finished_report(plan_target(composition, quick=True), composition, None)


@pytest.fixture(scope="module")
def alone():
    return planned("h100-1", ENGINE)


def test_a_step_is_the_sum_of_its_parts(alone):
    step = alone.rollouts
    assert tuple(step["seconds_by"]) == PARTS
    assert step["step_seconds"] == pytest.approx(sum(step["seconds_by"].values()))
    assert step["seconds_by"]["training"] == alone.step_seconds
    assert step["seconds_by"]["scoring"] == 0
    assert all(step["seconds_by"][part] > 0 for part in PARTS if part != "scoring")
    assert (step["drawn_tokens"], step["decode_steps"], step["waves"], step["fits"]) == (256, 2, 1, True)
    assert Report.from_json(alone.as_json()) == alone
    text = render_rollouts(step)
    assert "256 tokens drawn for 1 update in 2 decoding steps" in text
    assert "hand-over" in text


def test_updates_share_a_batch_and_score_it(alone):
    several = planned("h100-1", ENGINE, "rollouts.updates=2").rollouts
    for part in ("prefill", "decode", "hand_over"):
        assert several["seconds_by"][part] == pytest.approx(alone.rollouts["seconds_by"][part] / 2, rel=1e-3)
    assert several["seconds_by"]["scoring"] > 0
    assert several["updates"] == 2


def test_fewer_slots_take_more_steps(alone):
    few = planned("h100-1", "rollouts.engine.max_sequences=32").rollouts
    assert (few["waves"], few["decode_steps"]) == (4, 8)
    assert few["seconds_by"]["decode"] > alone.rollouts["seconds_by"]["decode"]


def test_an_engine_beside_sharded_training_has_whole_weights_that_come_over_the_mesh(alone):
    mesh = planned("h100-8", ENGINE, modifiers=('mesh:axes={"fsdp":-1}',))
    weights = alone.rollouts["engine_weights_per_device_bytes"]
    assert mesh.rollouts["engine_weights_per_device_bytes"] == weights
    assert mesh.memory["parameters"] < alone.memory["parameters"] / 4
    assert mesh.rollouts["memory_per_device_bytes"] == mesh.memory_per_device_bytes + weights


def test_drawing_ahead_overlaps_with_training(alone):
    ahead = planned("h100-1", ENGINE, "rollouts.off_policy=true").rollouts
    parts = ahead["seconds_by"]
    longer = max(parts["prefill"] + parts["decode"], parts["training"] + parts["scoring"])
    assert ahead["step_seconds"] == pytest.approx(longer + parts["hand_over"])


def test_plans_of_data_have_no_rollouts():
    (composition,) = PlanRequest("quickstart").composed(["h100-1"])
    report = finished_report(plan_target(composition, quick=True), composition, None)
    assert report.rollouts is None
    assert "rollouts" not in report.as_json()
    assert "rollouts" in {field.name for field in dataclasses.fields(report)}
