"""What a person must be told, and a job's engine can wait for: a run that is held, a storage that gives no answer."""

import errno

import pytest
from kanawa.cli.main import main
from kanawa.contracts import LeaseHeldError, ObjectMissingError, StorageError, StorageRefusedError
from kanawa.errors import UsageError
from kanawa_runtime.checkpoint.errors import CheckpointUnreadableError
from kanawa_runtime.commands import train
from kanawa_runtime.exit_codes import LOST, STOPPED
from kanawa_runtime.train.batches import DataReadError


@pytest.mark.parametrize(
    ("error", "job", "code"),
    [
        (LeaseHeldError, "", LOST),
        (LeaseHeldError, "seven", LOST),
        (StorageError, "", LOST),
        (StorageError, "seven", LOST),
        (CheckpointUnreadableError, "seven", LOST),
        (StorageRefusedError, "seven", 2),
        (UsageError, "seven", 2),
    ],
)
def test_what_may_pass_is_worth_another_start_in_a_job_and_at_a_terminal(monkeypatch, capsys, error, job, code):
    def fails(args, screen):
        message = "the run is held"
        raise error(message)

    monkeypatch.setenv("KANAWA_JOB", job)
    monkeypatch.setattr(train, "_train", fails)
    assert main(["train", "quickstart"]) == code
    said = capsys.readouterr().err
    assert "the run is held" in said and ("nothing is lost" in said) == (code == LOST)


@pytest.mark.parametrize(("number", "code"), [(errno.EIO, LOST), (errno.ESTALE, LOST), (errno.ENOENT, 1)])
def test_data_that_can_t_be_read_now_is_waited_for_and_lost_data_is_not(monkeypatch, number, code):
    def fails(args, screen):
        message = "the next batch can't be read"
        raise DataReadError(message) from OSError(number, "said the disk")

    monkeypatch.setenv("KANAWA_JOB", "seven")
    monkeypatch.setattr(train, "_train", fails)
    assert main(["train", "quickstart"]) == code


@pytest.mark.parametrize(
    ("error", "code"),
    [(StorageError, STOPPED), (CheckpointUnreadableError, STOPPED), (ObjectMissingError, 1), (StorageRefusedError, 2)],
)
def test_what_only_reads_a_run_ends_with_the_code_of_what_may_pass(monkeypatch, tmp_path, error, code):
    def fails(self, text):
        message = "503 Slow Down"
        raise error(message)

    monkeypatch.setattr("kanawa_runtime.api.run.Run.__init__", fails)
    assert main(["report", str(tmp_path)]) == code
