"""A branch goes on as its run would have, but for what is changed; both runs say so."""

import json
import os

import pytest
import tiny_lm
from kanawa.composition.experiment import compose
from kanawa.errors import UsageError
from kanawa_runtime.api.train import _check_branch
from kanawa_runtime.learn.adamw import AdamW
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.train.branch import BRANCH, branch_at, row_offset
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.screen import LineScreen


def attempt(run, *, branch=None, steps=6, **fields):
    cfg, lines = tiny_lm.telling().set(**{name: value for name, value in fields.items() if name != "peak"}), []
    cfg.checkpoints.set(every_steps=3)
    cfg.learner.set(optimizer=AdamW.Config())
    if "peak" in fields:
        cfg.learner.schedule.set(peak=fields["peak"])
    at = None if branch is None else branch_at(branch)
    Loop(compose(cfg), run, steps=steps, branch=at, screen=LineScreen(lines.append)).execute()
    events = read_events(run / "events.jsonl")
    return {event["step"]: event for event in events if event["event"] == "step"}, events, lines


def rows(event):
    counts = event["metrics"].items()
    return [int(name.removeprefix("row_")) for name, count in counts if name.startswith("row_") and count]


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    run = tmp_path_factory.mktemp("branch") / "parent"
    return run, attempt(run)[0]


def test_unchanged_it_is_the_run_itself(parent, tmp_path):
    run, steps = parent
    ours, events, lines = attempt(tmp_path / "same", branch=f"{run}@3")
    assert {step: event["loss"] for step, event in ours.items()} == {step: steps[step]["loss"] for step in (4, 5, 6)}
    assert any(line.startswith("going on from step 3 of another run") for line in lines)
    (record,) = [event for event in events if event["event"] == "branched_from"]
    assert (record["run"], record["step"], record["same_data"]) == (str(run), 3, True)
    told = [json.loads(line) for line in (run / "branches.jsonl").read_text().splitlines()]
    assert {"run": str(tmp_path / "same"), "step": 3} in told


def test_with_another_rate_the_same_rows_are_learned_from(parent, tmp_path):
    run, steps = parent
    ours, _, _ = attempt(tmp_path / "rate", branch=f"{run}@3", peak=1e-4)
    assert ours[4]["loss"] == steps[4]["loss"] and ours[5]["loss"] != steps[5]["loss"]
    assert [rows(ours[step]) for step in (4, 5, 6)] == [rows(steps[step]) for step in (4, 5, 6)]


def test_with_another_batch_no_row_is_skipped_or_repeated(parent, tmp_path):
    run, _ = parent
    ours, _, _ = attempt(tmp_path / "batch", branch=f"{run}@3", batch_size=4, steps=5)
    assert [rows(ours[step]) for step in (4, 5)] == [[24, 25, 26, 27], [28, 29, 30, 31]]
    ours, _, lines = attempt(tmp_path / "batch", branch=f"{run}@3", batch_size=4, steps=7)  # it resumes itself
    assert rows(ours[7]) == [36, 37, 38, 39]
    assert any(line.startswith("resuming at step 5") for line in lines)


def test_other_data_begin_at_their_first_row(parent, tmp_path):
    run, _ = parent
    data = tiny_lm.CountingTokens.Config(seed=40)
    ours, _, lines = attempt(tmp_path / "data", branch=str(run), data=data, steps=7)
    assert rows(ours[7]) == [40, 41, 42, 43, 44, 45, 46, 47]
    assert "the data are others than that run's: they are read from their first row" in lines


def test_a_branch_needs_a_directory_of_its_own(parent):
    run, _ = parent
    for directory in (None, run):
        with pytest.raises(UsageError, match="name its directory with --run DIR"):
            _check_branch(directory, None, None, branch_at(f"{run}@3"))
    with pytest.raises(UsageError, match="there is no"):
        branch_at("nowhere@3")


def test_a_pipe_as_the_record_is_not_waited_for(tmp_path):
    assert row_offset(tmp_path) == 0
    os.mkfifo(tmp_path / BRANCH)
    with pytest.raises(UsageError, match=r"branch\.json is a pipe, expected an ordinary file"):
        row_offset(tmp_path)


def test_what_can_t_be_branched_from_says_what_is_there(parent, tmp_path):
    run, _ = parent
    with pytest.raises(UsageError, match=r"expected the number of a checkpoint after the @, not 'x'; .* holds .*3, 6"):
        branch_at(f"{run}@x")
    with pytest.raises(UsageError, match=r"--from-step 3 is of the run that is resumed.*--branch-from .*@3"):
        _check_branch(tmp_path / "new", None, 3, branch_at(f"{run}@3"))
    with pytest.raises(UsageError, match=r"no earlier than this run's last, 3, as its config's `steps` or"):
        attempt(tmp_path / "new", branch=f"{run}@6", steps=3)
