"""A storage that refuses: said as what it is, nothing removed, and a step that counts is not called failed."""

import errno
import logging
import os
import shutil
import threading
import time

import pytest
from kanawa.contracts import CheckpointSaveError
from kanawa.guarded_read import UnreadableFileError
from kanawa_runtime.checkpoint import CheckpointUnreadableError, OrbaxCheckpointer, ShardedCheckpointer, layout
from kanawa_runtime.runs.events import EventLog, EventLogError, read_events
from kanawa_runtime.runs.run_directory import RunDirectory
from tiny_lm import tiny

from .checkpoint_trees import abstract, make_trees


def refusing(number):
    def refuse(*args, **fields):
        raise OSError(number, os.strerror(number))

    return refuse


def saved(folder, *steps, **policy):
    told = []
    checkpointer = OrbaxCheckpointer.Config().build(
        directory=folder, on_event=lambda kind, fields: told.append((kind, fields["step"])), **policy
    )
    for step in steps:
        checkpointer.save(step, **make_trees(step), data={}, meta={})
    return checkpointer, told


def test_old_steps_that_cannot_be_deleted_fail_no_save(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(layout, "delete_step", refusing(errno.EBUSY))
    checkpointer, told = saved(tmp_path, 1, 2, keep_last_n=1)
    checkpointer.close()
    assert told == [("checkpoint_committed", 1), ("checkpoint_committed", 2)]
    assert checkpointer.steps() == [1, 2]
    assert "can't be deleted: OSError: [Errno 16]" in caplog.text


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.ESTALE])
def test_a_folder_that_cannot_be_listed_is_no_damage_and_no_bug(tmp_path, monkeypatch, number):
    checkpointer, _ = saved(tmp_path, 1)
    checkpointer.close()
    monkeypatch.setattr(layout, "is_committed", refusing(number))
    for call in (checkpointer.steps, lambda: OrbaxCheckpointer.Config().build(directory=tmp_path)):
        with pytest.raises(CheckpointUnreadableError, match=r"the storage of the checkpoints in .* fails: .*Nothing"):
            call()
    monkeypatch.undo()
    assert checkpointer.steps() == [1]


def test_what_cannot_be_set_aside_stops_the_resume(tmp_path, monkeypatch):
    """Left where it is, a damaged newest step would have retention delete every sound one before it."""
    checkpointer, _ = saved(tmp_path, 1, 2)
    checkpointer.wait()
    (tmp_path / "2" / "manifest.json").write_text("{}")
    monkeypatch.setattr(layout, "set_aside", refusing(errno.EROFS))
    with pytest.raises(CheckpointUnreadableError, match="Read-only file system"):
        checkpointer.restore(abstract(make_trees()))
    with pytest.raises(CheckpointUnreadableError, match="Read-only file system"):
        checkpointer.go_back(1)
    assert checkpointer.steps() == [1, 2]
    checkpointer.close()


def test_events_are_held_while_the_storage_is_gone_and_written_when_it_is_back(tmp_path, monkeypatch, caplog):
    log = EventLog(tmp_path / "events.jsonl")
    for name in ("fstat", "write", "ftruncate"):
        monkeypatch.setattr(os, name, refusing(errno.ESTALE))
    with caplog.at_level(logging.ERROR):
        log.write("step", step=1)
        log.write("step", step=2)
    assert caplog.text.count("events are held in memory") == 1
    monkeypatch.undo()
    log.write("step", step=3)
    log.close()
    assert [event["step"] for event in read_events(tmp_path / "events.jsonl")] == [1, 2, 3]


def test_lost_events_are_an_error_but_not_in_place_of_what_ended_the_run(tmp_path, monkeypatch, caplog):
    def opened(name):
        run = RunDirectory.open(tmp_path / name, tiny())
        run.events().write("run_started")
        return run

    for error in (None, RuntimeError("the reason")):
        run = opened("plain" if error is None else "failing")
        with pytest.raises(EventLogError if error is None else RuntimeError), run:
            monkeypatch.setattr(os, "write", refusing(errno.ENOSPC))
            run.events().write("step", step=1)
            if error is not None:
                raise error
        monkeypatch.undo()
    assert "1 events could not be written" in caplog.text


def test_an_event_log_that_cannot_be_opened_is_told(tmp_path):
    (tmp_path / "run").mkdir()
    run = RunDirectory.open(tmp_path / "run", tiny())
    (tmp_path / "run" / "events.jsonl").mkdir()
    with run, pytest.raises(UnreadableFileError, match=r"events.jsonl is a directory, expected an ordinary"):
        run.events()


def test_a_storage_that_is_away_is_waited_for_once_and_again_after_a_save_that_counts(tmp_path, monkeypatch):
    checkpointer = ShardedCheckpointer.Config(patience_seconds=0.5).build(directory=tmp_path)
    free, write = threading.Event(), checkpointer._root.write

    def hang(*arguments):
        free.wait(60)
        return write(*arguments)

    monkeypatch.setattr(checkpointer._root, "write", hang)
    checkpointer.save(1, **make_trees(1), data={}, meta={})
    waited = []
    for _ in range(3):
        began = time.monotonic()
        assert checkpointer.is_writing()
        waited.append(time.monotonic() - began)
    assert waited[0] >= 0.5 and max(waited[1:]) < 0.4, waited
    free.set()
    checkpointer.wait()
    assert checkpointer._is_patient and not checkpointer.is_writing()
    # One that failed: the next isn't waited for either.
    monkeypatch.setattr(checkpointer._root, "write", refusing(errno.EIO))
    checkpointer.save(2, **make_trees(2), data={}, meta={})
    with pytest.raises(CheckpointSaveError):
        checkpointer.wait()
    assert not checkpointer._is_patient
    checkpointer.close()


def test_a_run_that_was_removed_is_not_said_to_need_space(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    checkpointer = ShardedCheckpointer.Config().build(directory=run / "checkpoints")
    shutil.rmtree(run)
    checkpointer.save(1, **make_trees(1), data={}, meta={})
    with pytest.raises(CheckpointSaveError, match="The run's folder .*run is gone: put it back"):
        checkpointer.wait()
    checkpointer.close()
