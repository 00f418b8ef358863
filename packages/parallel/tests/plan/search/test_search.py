"""The search: what it tries and drops and why, the frontier, verification, the winner's modifiers, wrong questions."""

import argparse
import dataclasses
import json

import pytest
from kanawa.composition.target import parse_target
from kanawa.errors import UsageError
from kanawa_parallel.plan import command as verb
from kanawa_parallel.plan.programs.request import PlanRequest
from kanawa_parallel.plan.search.evaluate import Outcome
from kanawa_parallel.plan.search.search import Search, search
from kanawa_parallel.plan.search.space import Candidate, fixed_choices, meshes


def arguments(*words):
    parser = argparse.ArgumentParser()
    verb.configure(parser)
    return parser.parse_args(words)


@pytest.fixture
def report(job):
    """A quick plan, to be varied."""
    from kanawa_parallel.plan.quick.estimate import quick_report

    return quick_report(PlanRequest("plan-job").composed(["box-2"])[0], "train_step")


def outcome(report, seconds, memory, *mesh):
    changed = dataclasses.replace(report, step_seconds_by={"compute": seconds}, memory={"total": memory})
    return Outcome(Candidate("box-2", mesh or None), changed)


def test_a_search_finds_at_least_what_the_rule_chose_and_train_takes_its_winner(job, tmp_path, capsys):
    words = ["plan-job", "--on", "box-4", "--search", "--verify", "0", "--json", "--write", str(tmp_path / "best.json")]
    assert verb.run(arguments(*words, "--fix", "policy=full")) == 0
    result = json.loads(capsys.readouterr().out)
    winner = json.loads((tmp_path / "best.json").read_text())
    assert result["winner"]["step_seconds"] <= result["by_rule"]["box-4"]["step_seconds"]
    assert winner["modifiers"] == result["winner"]["modifiers"]
    assert result["winner"]["command"].startswith("kanawa train plan-job --on box-4")
    reasons = [each["reason"] for each in result["candidates"] if not each["fits"]]
    assert all(reason.startswith(("refused: ", "does not fit: ", "may not fit: ")) for reason in reasons)
    (again,) = PlanRequest("plan-job", winner["modifiers"], []).composed(["box-4"])
    assert again.config.execution.mesh is not None


def test_the_frontier_is_what_nothing_beats_in_time_memory_and_cost(report):
    quick, small, beaten, same = (
        outcome(report, 1.0, 900),
        outcome(report, 2.0, 100, ("fsdp", 2)),
        outcome(report, 2.0, 950, ("data", 2)),
        outcome(report, 1.0, 900, ("tensor", 2)),
    )
    result = Search([same, beaten, small, quick], {})
    assert result.frontier() == [quick, small]


def test_without_a_candidate_that_fits_the_nearest_is_named(job, capsys):
    words = "plan-job --on tight-1 --search --verify 0 --fix policy=none --fix microbatches=1 --set batch_size=96"
    assert verb.run(arguments(*words.split())) == 1
    told = capsys.readouterr().out
    assert "none of the candidates fits; nearest: " in told and "too much of 23.4 KiB a device" in told


def test_one_that_the_compiler_refuses_makes_way_for_the_next(report):
    candidates = [
        outcome(report, 1.0, 500, ("fsdp", 2)),
        outcome(report, 2.0, 400, ("data", 2)),
        outcome(report, 3.0, 300),
    ]
    result = Search(list(candidates), {"box-2": candidates[2]})
    plans = {1.0: (False, None), 2.0: (True, 2.5), 3.0: (True, 2.75)}

    def compiled(each):
        fits, seconds = plans[each.seconds]
        return {"compiled": True, "fits": fits, "step_seconds": seconds, "memory_per_device_bytes": 500}

    result.verify(1, compiled)
    best = result.ranked()[0]
    assert best.candidate is candidates[1].candidate and best.seconds == 2.5
    # The rule's own is compiled beside it, so that like is compared with like.
    assert result.by_rule["box-2"].seconds == 2.75


def test_a_missing_compiler_is_said_and_stops_nothing(report):
    result = Search([outcome(report, 1.0, 500)], {})
    result.verify(2, lambda each: {"error": "planning failed\nno compiler here"})
    assert result.ranked()[0].unverified == "not compiled: no compiler here"


def test_meshes_fill_the_devices_and_keep_what_is_fixed(job):
    model = PlanRequest("plan-job").composed(["box-4"])[0].workload().model
    every = meshes(parse_target("box-4"), model, {})
    assert (("data", 2), ("fsdp", 2)) in every and (("tensor", 4),) in every and len(every) == len(set(every)) == 6
    assert meshes(parse_target("box-4"), model, {"tensor": "2"}) == [
        (("data", 2), ("tensor", 2)),
        (("fsdp", 2), ("tensor", 2)),
    ]
    with pytest.raises(UsageError, match="--fix tensor=3: no such mesh fills the 4 devices of box-4"):
        meshes(parse_target("box-4"), model, {"tensor": "3"})


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("tensr=2", "'tensr' isn't searched.*tensor"),
        ("stage=2", "the search makes meshes of data, fsdp, expert, tensor; set stage with"),
        ("fsdp=0", "expected a whole number from 1"),
        ("policy=ful", "no policy of that name.*full"),
        ("fsdp", "expected NAME=VALUE"),
        ("fsdp=", "expected a whole number from 1"),
        ("data=4", "data is fixed at 2 already; set it once"),
    ],
)
def test_what_can_not_be_fixed_is_refused(choice, message):
    with pytest.raises(UsageError, match=message):
        fixed_choices(["data=02", choice])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--search", "--serve", "--quick"], "--serve, --quick: a search plans training steps"),
        (["--search", "--verify", "-1"], "--verify -1 --budget 600: expected 0 or more"),
        (["--search", "--budget", "nan"], "--verify 2 --budget nan: .* a positive budget"),
        (["--search", "--write", "."], r"--write \. is a folder, expected a file such as best\.json"),
        (["--search", "--write", "nowhere/best.json"], "--write nowhere/best.json: there is no folder nowhere; make"),
        (["--fix", "tensor=1", "--budget", "9"], "--fix and --budget: only a search takes this; add --search"),
        (["--quick", "--verify", "0"], "--verify: only a search takes this"),
    ],
)
def test_what_a_search_can_not_do_is_refused(job, words, told):
    with pytest.raises(UsageError, match=told):
        verb.run(arguments("plan-job", "--on", "box-2", *words))


def test_the_same_question_has_the_same_answer_and_a_budget_ends_it(job):
    request = PlanRequest("plan-job")
    fixed = {"policy": "full", "microbatches": "1"}
    first, second = (search(request, ["box-2"], fixed) for _ in range(2))
    assert [each.candidate for each in first.ranked()] == [each.candidate for each in second.ranked()]
    short = search(request, ["box-2"], fixed, budget_seconds=1e-9)
    assert short.out_of_time and len(short.outcomes) == 1 and short.ranked()
