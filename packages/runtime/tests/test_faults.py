"""Fault points do what they are asked to, when and where, and nothing else."""

import errno
import os
import signal
import subprocess
import sys

import pytest
from kanawa.errors import UsageError
from kanawa_runtime.faults import ACTIONS, POINTS, Fault, Faults, parsed, reached


def test_a_spec_says_point_action_value_time_and_rank():
    assert parsed("in_step:sleep=2.5:3:1, pre_commit:eio:2+") == (
        Fault("in_step", "sleep", 2.5, 3, 3, 1),
        Fault("pre_commit", "eio", None, 2, None, None),
    )
    assert parsed("in_gc:exit:2-4")[0].last == 4
    assert parsed("") == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("in_step:sleep", "expected POINT:ACTION[=VALUE]:NTH[:RANK], such as in_step:sleep=30:5:1"),
        ("in_stop:sleep:1", f"has the point 'in_stop', expected one of: {', '.join(POINTS)}"),
        ("in_step:nap:1", f"has the action 'nap', expected one of: {', '.join(ACTIONS)}"),
    ],
)
def test_what_is_no_fault_is_said(text, said):
    with pytest.raises(UsageError) as raised:
        parsed(text)
    assert said in str(raised.value)


def test_it_strikes_the_asked_rank_the_asked_times():
    faults = Faults(parsed("pre_mkdir:enospc:2-3:1"))
    struck = []
    for count in range(1, 5):
        for rank in (0, 1):
            try:
                Faults.strike(faults, "pre_mkdir" if rank else "in_gc", None, rank)
            except OSError as error:
                struck.append((count, rank, error.errno))
    assert struck == [(2, 1, errno.ENOSPC), (3, 1, errno.ENOSPC)]


def test_it_strikes_once_where_a_folder_remembers(tmp_path):
    for expected in (True, False):
        faults = Faults(parsed("in_gc:eio:1"), once=tmp_path)
        try:
            faults.strike("in_gc", None, 0)
            struck = False
        except OSError:
            struck = True
        assert struck is expected


def test_a_flipped_bit_is_one_bit_of_the_largest_file(tmp_path):
    (tmp_path / "small").write_bytes(b"ab")
    (tmp_path / "large").write_bytes(bytes(100))
    Faults(parsed("post_commit:flip=3:1")).strike("post_commit", tmp_path, 0)
    assert (tmp_path / "small").read_bytes() == b"ab"
    assert sum(byte.bit_count() for byte in (tmp_path / "large").read_bytes()) == 1


def test_a_process_that_is_not_asked_passes(tmp_path):
    reached("in_step", tmp_path)


@pytest.mark.parametrize(
    ("fault", "code", "left"),
    [("in_gc:sigkill:1", -signal.SIGKILL, 100), ("in_gc:exit=7:1", 7, 100), ("in_gc:torn:1", -signal.SIGKILL, 50)],
)
def test_a_process_is_ended(tmp_path, fault, code, left):
    file = tmp_path / "file"
    file.write_bytes(bytes(100))
    program = (
        "import sys, pathlib; from kanawa_runtime.faults import reached; reached('in_gc', pathlib.Path(sys.argv[1]))"
    )
    environment = {**os.environ, "KANAWA_FAULT": fault}
    done = subprocess.run([sys.executable, "-c", program, str(file)], env=environment, capture_output=True, check=False)
    assert (done.returncode, file.stat().st_size) == (code, left)
