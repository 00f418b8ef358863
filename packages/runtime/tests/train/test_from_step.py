"""Going on from an older checkpoint: the same losses again, and later checkpoints are kept beside."""

import json

import pytest
import tiny_lm
from kanawa.composition.experiment import compose
from kanawa.contracts import Checkpointer, CheckpointError
from kanawa_runtime.checkpoint import CheckpointNotFoundError
from kanawa_runtime.commands.train import _to_type_again, _typed
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.screen import LineScreen


class Forward(Checkpointer):
    class Config(Checkpointer.Config):
        """No fields."""

    steps = save = commit = restore = wait = close = lambda self, *args, **fields: [1, 2]


def attempt(path, steps=6, from_step=None):
    cfg, lines = tiny_lm.tiny(), []
    cfg.checkpoints.set(every_steps=2)
    loop = Loop(compose(cfg), path, steps=steps, from_step=from_step, screen=LineScreen(lines.append))
    return loop.execute(), lines


def test_it_goes_on_from_there_and_keeps_what_came_later(tmp_path):
    run = tmp_path / "run"
    attempt(run)
    (run / "checkpoints" / "00060").mkdir()
    (run / "checkpoints" / "00060" / "COMMIT.json").write_text("{}")
    outcome, lines = attempt(run, from_step=2)
    assert (outcome.start_step, outcome.step) == (2, 6)
    assert any(line.startswith("resuming at step 2 from") for line in lines)
    assert [line.rpartition("/")[2] for line in lines if "is set aside" in line] == ["4.left", "6.left"]
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names == {"2", "4", "6", "4.left", "6.left", "00060"}
    events = read_events(run / "events.jsonl")
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert losses[6:] == losses[2:6]
    assert [event["step"] for event in events if event["event"] == "went_back"] == [2]
    attempt(run, from_step=4)
    assert (run / "checkpoints" / "6.left-2").is_dir()


def test_a_step_that_is_not_there_is_refused_and_nothing_changes(tmp_path):
    run = tmp_path / "run"
    attempt(run, steps=4)
    with pytest.raises(CheckpointNotFoundError, match=r"has no committed checkpoint 3; it has \[2, 4\]"):
        attempt(run, from_step=3)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["2", "4"]


def test_a_checkpointer_without_a_way_back_says_so(tmp_path):
    checkpointer = Forward(Forward.Config(), directory=tmp_path)
    assert checkpointer.go_back(2) == []
    with pytest.raises(CheckpointError, match="Forward can't set aside the checkpoints after step 1"):
        checkpointer.go_back(1)


@pytest.mark.parametrize(
    "words", [["--from-step", "3"], ["--from-step=3"], ["--from", "3"], ["--coordinator", "a:1", "--process-id=1"], []]
)
def test_the_command_to_go_on_does_not_go_back_again(words):
    assert _to_type_again(["train", "tiny", *words, "--run", "a"]) == ["train", "tiny", "--run", "a"]


def test_what_was_launched_is_what_one_types_again(monkeypatch):
    monkeypatch.setenv("KANAWA_RESUME", "kanawa launch local tiny --processes 2")
    monkeypatch.setattr("sys.argv", ["kanawa", "train", "tiny", "--coordinator", "127.0.0.1:1", "--process-id", "0"])
    assert _typed() == "kanawa launch local tiny --processes 2"
    monkeypatch.delenv("KANAWA_RESUME")
    assert _typed() == "kanawa train tiny"


def test_a_restart_says_how_many_steps_are_taken_again(tmp_path):
    run = tmp_path / "run"
    attempt(run, steps=6)
    # As after a kill: the steps since the newest checkpoint are on record, and not saved.
    with (run / "events.jsonl").open("a") as file:
        for step in (7, 8, 9):
            file.write(json.dumps({"event": "step", "attempt": 1, "step": step, "loss": 1.0}) + "\n")
    _, lines = attempt(run, steps=12)
    assert "taken again, since the last attempt did not save them: steps 7 to 9 (3 in all)" in lines
    _, lines = attempt(run, steps=14)
    assert not any("taken again" in line for line in lines)


@pytest.mark.parametrize("name", ["00060", "٤", "²", "6 ", "+6"])
def test_only_numbers_as_we_write_them_are_steps(tmp_path, name):
    folder = tmp_path / "checkpoints" / name
    folder.mkdir(parents=True)
    (folder / "COMMIT.json").write_text("{}")
    from kanawa_runtime.checkpoint.layout import committed_steps, remove_unfinished

    assert committed_steps(tmp_path / "checkpoints") == []
    (folder / "COMMIT.json").unlink()
    assert remove_unfinished(tmp_path / "checkpoints") == []
    assert folder.is_dir()
