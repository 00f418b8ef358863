"""What was committed once is never removed for what it lacks now, and a storage that fails is no damage."""

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest
from kanawa.composition.experiment import compose
from kanawa.contracts import CheckpointError, CheckpointSaveError
from kanawa_runtime.checkpoint import CheckpointUnreadableError, OrbaxCheckpointer, manifest
from kanawa_runtime.checkpoint.errors import is_storage_failure
from kanawa_runtime.checkpoint.layout import recorded_commits
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.train.loop import Loop
from tiny_lm import tiny

from .checkpoint_trees import abstract, make_trees


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = tmp_path_factory.mktemp("trained") / "run"
    attempt(run)
    return run


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def attempt(run, steps=6):
    cfg = tiny()
    cfg.checkpoints.set(every_steps=2)
    return Loop(compose(cfg), run, steps=steps).execute()


def names(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def damage(run, *files):
    for step in (2, 4, 6):
        for file in files:
            (run / "checkpoints" / str(step) / file).unlink()


@pytest.mark.parametrize("files", [("COMMIT.json",), ("COMMIT.json", "manifest.json")])
def test_steps_without_commit_files_are_set_aside_and_the_run_does_not_begin_anew(run, files):
    damage(run, *files)
    with pytest.raises(CheckpointError) as caught:
        attempt(run)
    assert caught.value.exit_code != 0
    for part in ("record checkpoints, the newest of step 6", "holds 2.uncommitted, 4.uncommitted", "from a backup"):
        assert part in str(caught.value)
    assert names(run) == ["2.uncommitted", "4.uncommitted", "6.uncommitted"]
    assert [e["step"] for e in read_events(run / "events.jsonl") if e["event"] == "checkpoint_damaged"] == [2, 4, 6]
    with pytest.raises(CheckpointError, match=r"none of them can be used"):
        attempt(run)


def test_vanished_checkpoints_do_not_begin_the_run_anew_either(run):
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(CheckpointError, match=r"none of them can be used: .*checkpoints is empty"):
        attempt(run)
    (run / "events.jsonl").unlink()
    assert attempt(run).start_step == 0


def test_the_newest_that_is_whole_is_used(run):
    (run / "checkpoints" / "6" / "COMMIT.json").unlink()
    assert attempt(run, 7).start_step == 4
    assert names(run) == ["4", "6", "6.uncommitted", "7"]


def test_several_damaged_steps_are_kept_apart(run):
    for step in (4, 6):
        (run / "checkpoints" / str(step) / "manifest.json").write_text("{}")
    assert attempt(run).start_step == 2
    assert names(run) == ["2", "4", "4.damaged", "6", "6.damaged"]
    (run / "checkpoints" / "6" / "manifest.json").write_text("{}")
    assert attempt(run).start_step == 4
    assert "6.damaged-2" in names(run)


def test_only_events_of_the_right_form_record_commits(tmp_path):
    assert recorded_commits(tmp_path) == frozenset()
    lines = [
        '{"event": "checkpoint_committed", "step": 3}',
        '{"event": "checkpoint_committed", "step": "4"}',
        '{"event": "checkpoint_committed", "step": true}',
        '["checkpoint_committed"]',
        '{"event": "sample", "text": "checkpoint_committed", "step": 5}',
        '{"event": "checkpoint_committed", "st',
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    assert recorded_commits(tmp_path) == {3}


def saved(directory: Path, *steps: int) -> OrbaxCheckpointer:
    checkpointer = OrbaxCheckpointer.Config().build(directory=directory)
    for step in steps:
        checkpointer.save(step, **make_trees(step), data={}, meta={})
    checkpointer.wait()
    return checkpointer


@pytest.mark.parametrize("file", ["manifest.json", "COMMIT.json"])
def test_an_io_error_is_not_damage(tmp_path, monkeypatch, file):
    checkpointer = saved(tmp_path, 1, 2)
    read = manifest.guarded_bytes

    def failing(path, *home, most):
        if path.name == file and path.parent.name == "2":
            raise OSError(errno.EIO, "Input/output error")
        return read(path, *home, most=most)

    monkeypatch.setattr(manifest, "guarded_bytes", failing)
    with pytest.raises(CheckpointUnreadableError, match=r"Input/output error.*not damage: nothing was changed"):
        checkpointer.restore(abstract(make_trees()))
    monkeypatch.undo()
    assert checkpointer.steps() == [1, 2]
    restored = checkpointer.restore(abstract(make_trees()))
    assert restored.step == 2
    checkpointer.close()


@pytest.mark.parametrize("file", ["params/_METADATA", "params/manifest.ocdbt"])
def test_a_pipe_among_a_steps_files_is_not_waited_for(tmp_path, file):
    checkpointer = saved(tmp_path, 1, 2)
    pipe = tmp_path / "2" / file
    pipe.unlink()
    os.mkfifo(pipe)
    restored = checkpointer.restore(abstract(make_trees()))
    assert restored.step == 1
    assert any("is a pipe, expected an ordinary file" in reason for reason in restored.damaged[2])
    checkpointer.close()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EIO, "Input/output error"), True),
        (PermissionError(errno.EACCES, "Permission denied"), True),
        (OSError(errno.EMFILE, "Too many open files"), True),
        (FileNotFoundError(errno.ENOENT, "No such file"), False),
        (FileNotFoundError("no such checkpoint"), False),
        (ValueError("Error reading: Input/output error [os_error_code='5']"), True),
        (ValueError("Failed to open directory: Not a directory [os_error_code='20']"), False),
        (ValueError("zstd: corrupt"), False),
    ],
)
def test_which_errors_are_the_storages(error, expected):
    assert is_storage_failure(error) == expected


@pytest.mark.parametrize("everything", [False, True])
def test_a_folder_that_vanishes_is_one_error_and_no_traceback(tmp_path, caplog, capsys, everything):
    folder = tmp_path / "run" / "checkpoints"
    checkpointer = saved(folder, 1)
    caplog.set_level(logging.WARNING)
    shutil.rmtree(folder.parent if everything else folder)
    if everything:
        with pytest.raises(CheckpointSaveError, match=r"checkpoint 2 could not be saved.*there is no older checkpoint"):
            checkpointer.save(2, **make_trees(2), data={}, meta={}) and checkpointer.wait()
        assert not folder.parent.exists()
        folder.parent.mkdir()
    assert checkpointer.save(3, **make_trees(3), data={}, meta={})
    checkpointer.wait()
    assert checkpointer.steps() == [3]
    assert "has vanished" in caplog.text
    assert not [record for record in caplog.records if record.exc_info]
    assert "Traceback" not in capsys.readouterr().err
    checkpointer.close()
