"""What launchers read of a job's files."""

import os

import pytest
from kanawa.errors import UsageError
from kanawa_runtime.launch.client import end_of


def test_a_logs_end_is_read_and_a_pipe_is_not_waited_for(tmp_path):
    log = tmp_path / "rank-0.log"
    log.write_text("first\nlast\n")
    assert end_of(log, 5) == "last\n"
    assert end_of(log, 100) == "first\nlast\n"
    log.unlink()
    os.mkfifo(log)
    with pytest.raises(UsageError, match="is a pipe, expected an ordinary file"):
        end_of(log, 5)
