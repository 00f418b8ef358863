"""The status line: it moves within two seconds, steps aside for output, and is silent without a terminal."""

import io
import os
import pty
import re
import subprocess
import sys
import threading
import time

import kanawa.status
import pytest
from kanawa.status import hidden, stage, stage_lines, status_line, waits_for

SLOW = """
import time
from kanawa.config import Config

class Cfg(Config):
    steps: int = 20

def slow():
    time.sleep(1.5)
    return Cfg()
"""


class Terminal(io.StringIO):
    """Remembers what was written, as a terminal."""

    def isatty(self):
        return True

    def shown(self):
        """Returns what a reader saw on the line, each text once, without frames and seconds."""
        drawn = re.findall(r"\r\x1b\[K[-|/\\] ([^\r]*?)(?: \d+ s)?(?=\r|$)", self.getvalue())
        return list(dict.fromkeys(drawn))


@pytest.fixture
def terminal():
    return Terminal()


def wait_for(terminal, text, seconds=60):
    end = time.monotonic() + seconds
    while text not in terminal.getvalue():
        assert time.monotonic() < end, (text, terminal.getvalue())
        time.sleep(0.02)


def test_the_innermost_stage_is_shown_and_nothing_is_left(terminal):
    with status_line(terminal, delay_seconds=0.0), stage("composing"):
        wait_for(terminal, "composing")
        with stage("importing"):
            wait_for(terminal, "importing")
    assert terminal.shown() == ["composing", "importing"]
    assert terminal.getvalue().endswith("\r\x1b[K"), "the line is cleared at the end"
    assert not any(thread.name == "kanawa-status" for thread in threading.enumerate())


def test_output_takes_its_place(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal)
    with status_line(terminal, delay_seconds=0.0), stage("composing"):
        wait_for(terminal, "composing")
        sys.stderr.write("a message\n")
        after = len(terminal.getvalue())
        time.sleep(0.3)
        assert terminal.getvalue()[:after].endswith("\r\x1b[Ka message\n"), "on a clear line"
        assert len(terminal.getvalue()) == after, "silent until the next stage"
        with stage("lowering"):
            wait_for(terminal, "lowering")


def test_quick_commands_show_nothing(terminal):
    with status_line(terminal), stage("composing"):
        pass
    assert terminal.getvalue() == ""


def test_a_bar_has_the_terminal_to_itself(terminal):
    with status_line(terminal, delay_seconds=0.0), hidden(), stage("compiling"):
        time.sleep(0.3)
    assert terminal.getvalue() == ""


def test_no_terminal_no_line(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with status_line(delay_seconds=0.0), stage("composing"):
        assert sys.stderr is stream
        time.sleep(0.2)
    assert stream.getvalue() == ""


def test_a_narrow_terminal_is_not_wrapped(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "24")
    with status_line(terminal, delay_seconds=0.0), stage("composing something-with-a-long-name"):
        wait_for(terminal, "composing")
    assert all(len(line) <= 23 for line in re.split(r"\r\x1b\[K", terminal.getvalue()))


def test_a_slow_command_moves_within_two_seconds(fake_distribution):
    site = fake_distribution("fake-slow", {"kanawa.experiments": ["slow = fake_slow:slow"]}, {"fake_slow": SLOW})
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(site), "TERM": "xterm"}
    command = [sys.executable, "-m", "kanawa.cli", "show", "slow"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    drawn = b""
    try:
        while chunk := os.read(ours, 1024):
            drawn += chunk
    except OSError:  # the other end is closed
        pass
    out = process.communicate()[0]
    assert process.returncode == 0
    assert "steps: 20" in out
    assert b"composing slow" in drawn
    assert drawn.endswith(b"\r\x1b[K")


def test_where_there_is_no_terminal_a_long_command_has_a_line_for_each_stage():
    stream = io.StringIO()
    with stage_lines(stream, after_seconds=1.0):
        with stage("quick"):
            pass
        with stage("compiling"):
            wait_for(stream, "compiling")
        with stage("counting"):
            pass
    told = stream.getvalue().splitlines()
    assert [line.partition(": ")[2] for line in told] == ["compiling", "counting"]


def test_a_wait_without_a_terminal_says_again_and_again_what_for(monkeypatch):
    monkeypatch.setattr(kanawa.status, "_AGAIN_SECONDS", 0.3)
    stream = io.StringIO()
    with stage_lines(stream, after_seconds=0.0), stage("searching"), stage("compiling for a pod"):
        wait_for(stream, "still searching, compiling for a pod (")
        waits_for("process 7: 60 s: reading")
        wait_for(stream, "still searching, process 7: 60 s: reading (")
    told = [line.partition(": ")[2] for line in stream.getvalue().splitlines()]
    assert told[0] == "searching" and "process 7: 60 s: reading" in told
    assert re.search(r"still searching, compiling for a pod \(\d+ s of this process's processor time so far\)", told[1])


def test_on_a_terminal_the_line_says_what_a_stage_waits_for(terminal):
    with status_line(terminal, delay_seconds=0.0), stage("compiling"):
        waits_for("process 7: reading")
        wait_for(terminal, "process 7: reading")
    assert "process 7: reading" in terminal.shown()


def test_a_quick_command_has_no_lines():
    stream = io.StringIO()
    with stage_lines(stream, after_seconds=60), stage("quick"):
        pass
    assert stream.getvalue() == ""
