"""Placement: what is chosen where the shipped rule's plan doesn't fit, why, and what stays the user's."""

import dataclasses
import json
import re

import kanawa as kn
import pytest
from kanawa.composition.experiment import compose
from kanawa.composition.target import parse_target
from kanawa.plugins import MeshRule
from kanawa_parallel.plan.placement import answer as placement
from kanawa_parallel.plan.placement import remembered
from kanawa_parallel.plan.placement.bound import Bound
from kanawa_parallel.plan.placement.choices import Spread, kept_sets, slices_of, spreads
from kanawa_parallel.plan.placement.sketch import Kept, Sketch
from kanawa_parallel.plan.quick.estimate import estimated, quick_report
from kanawa_parallel.plan.search.evaluate import ROOM

ROWS = "batch_size=8"
WORDS = ("plan-job", "tight-2", [], [ROWS])


@pytest.fixture
def placed(unplaced_job):
    """The job on two devices whose shipped rule's plan doesn't fit them."""
    remembered._ANSWERS.clear()
    return compose(*WORDS)


def test_what_does_not_fit_by_the_rule_fits_where_it_is_placed(placed):
    report = quick_report(placed, "train_step")
    assert report.memory["total"] * ROOM <= report.memory_limit_bytes and placed.rule.name == "placement"
    by_rule = quick_report(compose(*WORDS, rule=MeshRule(name="r", platform="cpu", mesh={"fsdp": 2})), "train_step")
    assert by_rule.memory["total"] * ROOM > by_rule.memory_limit_bytes


def test_the_choice_is_on_record_with_figures_and_others_and_is_the_same_again(placed, tmp_path):
    why = kn.show("plan-job", on="tight-2", set=ROWS).why("execution.mesh")[-1]
    assert why.set_by.startswith("mesh rule mesh, placement of kanawa-parallel") and "a step, " in why.set_by
    assert "; next: " in why.set_by and "traced" in why.set_by
    remembered._ANSWERS.clear()
    (tmp_path / "cache" / "placements.json").unlink()
    assert compose(*WORDS).rule == placed.rule and compose(*WORDS).config == placed.config


def test_an_answer_is_cached_for_these_plugins_and_this_question(placed, tmp_path, monkeypatch):
    file = tmp_path / "cache" / "placements.json"
    held = json.loads(file.read_text())
    assert len(held["answers"]) == 1
    remembered._ANSWERS.clear()
    with monkeypatch.context() as patched:
        patched.setattr(placement, "estimated", None)
        again = compose(*WORDS)
    assert again.rule == placed.rule and again.rule.reason == placed.rule.reason and again.config == placed.config
    compose("plan-job", "tight-2", [], ["batch_size=16"])
    assert len(json.loads(file.read_text())["answers"]) == 2
    # Of other plugins nothing counts, and a file that can't be read is none.
    for text in (json.dumps({**held, "signature": "other"}), "{"):
        file.write_text(text)
        remembered._ANSWERS.clear()
        compose(*WORDS)
        assert json.loads(file.read_text())["answers"] == held["answers"]


def test_one_device_and_a_rule_that_fits_are_left_alone(unplaced_job, monkeypatch):
    assert compose("plan-job", "box-4").rule.name == "cpu"
    monkeypatch.setattr(placement, "answer", None)
    assert compose("plan-job", "box-1").config.execution.mesh is None


def test_a_rule_that_pays_for_memory_stays_only_where_nothing_is_quicker(unplaced_job, monkeypatch):
    saves = MeshRule(name="r", platform="cpu", mesh={"fsdp": 4}, modifiers=(("accumulate", {"microbatches": 6}),))
    assert placement._pays(saves) and not placement._pays(MeshRule(name="r", platform="cpu", mesh={"fsdp": 4}))
    seconds = [sum(quick_report(compose("plan-job", "box-4", rule=saves), "train_step").step_seconds_by.values())]
    monkeypatch.setattr(
        "kanawa.composition.experiment.find_rule", lambda *_: MeshRule(**{**vars(saves), "distribution": "x"})
    )
    remembered._ANSWERS.clear()
    chosen = compose("plan-job", "box-4")
    seconds.append(sum(quick_report(chosen, "train_step").step_seconds_by.values()))
    assert chosen.rule.name == "placement" and seconds[1] < 0.97 * seconds[0]


def test_a_rule_of_the_user_wins_though_its_plan_does_not_fit(job):
    assert compose(*WORDS).rule.name.startswith("user.")


def test_what_the_user_set_stays(unplaced_job):
    remembered._ANSWERS.clear()
    words = ['mesh:axes={"data":2}', "remat:policy=full", "accumulate:microbatches=2"]
    for word in words:
        composition = compose("plan-job", "tight-2", [word], [ROWS])
        config = composition.config
        stack = config.model.stack
        found = {
            words[0]: dict(config.execution.mesh.axes) == {"data": 2},
            words[1]: type(stack.remat).__qualname__ == "FullRemat.Config",
            words[2]: config.gradients.microbatches == 2,
        }
        assert found[word], word


def test_what_can_not_fit_says_what_would(unplaced_job, caplog):
    remembered._ANSWERS.clear()
    composition = compose("plan-job", "tight-2", [], ["model.input_dim=512"])
    assert "nothing fits tight-2: the nearest" in composition.rule.reason and "what would: about tight-" in caplog.text


def test_too_few_rows_for_every_mesh_say_how_many_would_do_and_on_how_many_devices(unplaced_job):
    remembered._ANSWERS.clear()
    with pytest.raises(placement.Unplaceable) as refused:
        compose("plan-job", "box-256", [], ["batch_size=2", "length=8"])
    text = str(refused.value)
    rows, selector = re.search(r"what would fit: batch_size=(\d+), or (box-\d+)", text).groups()
    assert "batch_size is 2, and no mesh splits a step over the 256 devices of box-256" in text
    assert compose("plan-job", "box-256", [], [f"batch_size={rows}", "length=8"]).rule
    assert compose("plan-job", selector, [], ["batch_size=2", "length=8"]).rule


def test_meshes_are_tried_by_domains_and_only_those_that_a_model_can_use(unplaced_job):
    first = [dict(each.axes) for each in spreads(parse_target("box-8"), 100.0, experts=1)]
    assert first[:2] == [{"fsdp": 8}, {"data": 8}] and {"fsdp": 4, "tensor": 2} in first
    assert not any("expert" in axes for axes in first)
    mixture = [dict(each.axes) for each in spreads(parse_target("box-8"), 100.0, experts=4)]
    assert {"fsdp": 2, "expert": 4} in mixture and not any(axes.get("expert") == 8 for axes in mixture)
    many = [dict(each.axes).get("expert", 1) for each in spreads(parse_target("box-512"), 1e15, experts=256)]
    assert max(many) <= 8, "experts stay in a fast domain"
    # Between machines there are copies, unless one machine can't hold a copy.
    assert dict(spreads(parse_target("box-32"), 100.0, experts=1)[0].axes) == {"data": 32}
    assert dict(spreads(parse_target("box-32"), 17 * 2**29, experts=1)[0].axes) == {"fsdp": 32}
    assert dict(spreads(parse_target("box-32"), 4 * 2**29, experts=1)[0].axes) == {"data": 4, "fsdp": 8}


def test_activations_are_kept_in_groups(unplaced_job):
    sets = list(kept_sets(["attention_out", "attention_residuals", "key", "layer_input", "query", "value"]))
    assert Kept() in sets and Kept(frozenset(("key", "query", "value")), frozenset(("layer_input",))) in sets
    assert all(("query" in each.save) == ("key" in each.save) for each in sets) and len(sets) == 2 * 3 * 2
    assert slices_of(96, {"data": 2, "fsdp": 4, "tensor": 2}) == [1, 2, 3, 4, 6, 12]


def test_a_pipelines_guess_is_of_the_whole_step(job):
    """The guess of what was traced is the plan itself, whatever the ticks; in all of them recomputing is spared."""
    words = ['mesh:axes={"stage":4}', "pipeline:microbatches=4", "remat:policy=full"]
    planned = estimated(compose("plan-job", "box-4", words, [ROWS]), "train_step")
    sketch = Sketch(planned)
    ((_, count, guess),) = sketch.guesses([Kept()], [1, 2])
    assert count == 1 and guess.seconds == pytest.approx(planned.times.seconds.total)
    assert guess.memory_bytes == pytest.approx(placement._memory(planned))


def test_a_mesh_that_can_gain_nothing_is_not_traced(unplaced_job):
    """By the trace of `fsdp` alone: sums over `tensor` are waited for, and fewer shards leave less room."""
    words = ['mesh:axes={"fsdp":4}', "remat:policy=full"]
    planned = estimated(compose("plan-job", "box-4", words, [ROWS]), "train_step")
    sketch, plain = Sketch(planned), Spread((("fsdp", 4),))
    bound = Bound(plain, sketch, [Kept()], 1e12, 2048)
    assert bound.seconds(plain) <= planned.times.seconds.total
    assert bound.seconds(Spread((("stage", 4),), microbatches=4)) == pytest.approx(1.75 * sketch.recomputing_seconds())
    tight = dataclasses.replace(bound, room=planned.memory.peak)
    assert tight.seconds(Spread((("data", 4),))) == float("inf")


def test_few_rows_are_split_and_stages_made_of_layers(unplaced_job):
    meshes = spreads(parse_target("box-8"), 100.0, experts=1, rows=2)
    assert Spread((("fsdp", 2), ("context", 4))) in meshes and not any(each.stages == 4 for each in meshes)
    piped = [each for each in spreads(parse_target("box-8"), 100.0, experts=1, rows=64) if each.stages == 4]
    assert piped == [Spread((("stage", 4), ("fsdp", 2)), microbatches=32)] and "context" not in str(meshes[0])
