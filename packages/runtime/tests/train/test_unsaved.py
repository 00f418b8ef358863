"""A run whose saves fail goes on for as long as its policy lets it."""

import errno

import pytest
import tiny_lm
from kanawa.composition.experiment import compose
from kanawa.contracts import CheckpointSaveError
from kanawa_runtime.checkpoint.background import BackgroundCheckpointer
from kanawa_runtime.checkpoint.roots.directory import DirectoryRoot
from kanawa_runtime.exit_codes import LOST
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.screen import Screen


def train(run, **policy):
    cfg = tiny_lm.tiny()
    cfg.checkpoints.set(every_steps=2, **policy)
    return Loop(compose(cfg), run, steps=20, screen=Screen()).execute()


def refuse(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(autouse=True)
def saves_end_before_the_next_is_due(monkeypatch):
    """As they do where steps take longer than a moment."""

    def ended(checkpointer):
        if checkpointer._thread is not None:
            checkpointer._thread.join()
        return False

    monkeypatch.setattr(BackgroundCheckpointer, "is_writing", ended)


def steps(run):
    return max(event["step"] for event in read_events(run / "events.jsonl") if event["event"] == "step")


@pytest.mark.parametrize("policy", [{"most_failed_saves": 3}, {"most_unsaved_minutes": 1e-9}])
def test_training_without_a_checkpoint_ends_where_the_policy_says(tmp_path, monkeypatch, policy):
    monkeypatch.setattr(DirectoryRoot, "commit", refuse)
    with pytest.raises(CheckpointSaveError, match="failed, and nothing was saved for") as caught:
        train(tmp_path / "run", **policy)
    # Which of the two it was, and what comes next.
    ((name, value),) = policy.items()
    assert f"checkpoints.{name}={value:g} ends the run. Free space" in str(caught.value)
    assert caught.value.exit_code == LOST
    assert steps(tmp_path / "run") < 12


def test_without_a_policy_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(DirectoryRoot, "commit", refuse)
    with pytest.raises(CheckpointSaveError, match="No space left"):
        train(tmp_path / "run")
    assert steps(tmp_path / "run") == 20


def test_saves_that_are_left_out_count_among_the_failed(tmp_path, monkeypatch):
    monkeypatch.setattr("kanawa_runtime.train.loop._Running._is_writing", lambda loop: True)
    with pytest.raises(CheckpointSaveError, match=r"checkpoints.most_failed_saves=3 ends the run"):
        train(tmp_path / "run", most_failed_saves=3)
