"""The one table: what codes mean, and what is made of it."""

import subprocess

import pytest
from kanawa.cli.main import main
from kanawa_runtime.exit_codes import (
    LOST,
    STOPPED,
    gang_code,
    permanent_codes,
    saved_by_all,
    shell_code,
    shell_test,
    table_text,
    verdict,
)
from kanawa_runtime.train.outcome import Outcome
from kanawa_runtime.train.peers import PeerLostError


@pytest.mark.parametrize(
    ("code", "meaning"),
    [(0, "done"), (1, "permanent"), (2, "permanent"), (41, "permanent"), (42, "retry"), (43, "permanent")]
    + [(126, "permanent"), (127, "retry"), (134, "retry"), (137, "retry"), (143, "retry"), (255, "retry")],
)
def test_what_codes_mean(code, meaning):
    assert verdict(code) == meaning


def test_the_trainer_ends_by_the_table():
    saved = {"run": "r", "step": 1, "total_steps": 2, "saved": "r/checkpoints/1"}
    assert verdict(Outcome("done", **saved).exit_code) == "done"
    assert Outcome("preempted", **saved).exit_code == STOPPED
    assert [Outcome(kind, "r", 1, 2).exit_code for kind in ("preempted", "stopped")] == [143, 130]
    assert verdict(PeerLostError.exit_code) == "retry"


def test_a_lost_peer_is_no_stop():
    """A crash loop must use up its restarts, whichever process's code a launcher sees first."""
    assert PeerLostError.exit_code == LOST != STOPPED
    assert not saved_by_all([STOPPED, LOST])


@pytest.mark.parametrize("verb", ["train", "launch"])
def test_the_table_is_in_the_help(verb, capsys):
    assert main([verb, "--help"]) == 0
    assert table_text() in " ".join(capsys.readouterr().out.split())


def test_a_gang_has_one_code():
    assert gang_code([0, 0]) == 0
    assert gang_code([0, 42]) == 42
    # The others ended because this one did.
    assert gang_code([42, 2, 137]) == 2
    assert gang_code([42, 137, 134]) == 137
    assert [saved_by_all(codes) for codes in ([42, 42], [42, 137], [0, 42], [])] == [True, False, False, False]


def test_signals_are_told_as_shells_do():
    assert shell_code(-9) == 137
    assert shell_code(3) == 3


def test_engines_that_want_a_list_get_the_same_table():
    assert len(permanent_codes()) == 125
    assert {code for code in range(1, 256) if verdict(code) == "permanent"} == set(permanent_codes())


def test_the_shell_reads_the_same_table():
    script = f"for code in $(seq 0 255); do if {shell_test('code')}; then echo $code; fi; done"
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert {int(line) for line in said.split()} == {code for code in range(256) if verdict(code) == "retry"}
