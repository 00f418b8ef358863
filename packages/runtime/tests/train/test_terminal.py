"""The real command on a narrow pseudo-terminal: something moves before JAX is there, and Ctrl-C leaves it tidy."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
import tiny_lm
from xla_options import xla_flags

COLUMNS = 40
#: Makes stdin the terminal that Ctrl-C is typed on, then becomes the command; a fork here would copy JAX's threads.
_OWN_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def command(tmp_path):
    def build(steps, *more):
        return [
            sys.executable, "-m", "kanawa.cli", "train", "tiny-lm", "--run", str(tmp_path / "run"),
            "--steps", str(steps), *more,
        ]  # fmt: skip

    return build


def environment():
    # A worker of pytest-xdist reads its standard input through readline, which puts the size of no terminal there.
    clean = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    return {
        **clean,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": tiny_lm.FOLDER,
        "TERM": "xterm-256color",
        "XLA_FLAGS": xla_flags(),
    }


def on_terminal(command, pressed_at=None):
    """Runs a command on a terminal of its own; types Ctrl-C once `pressed_at` was shown. Returns (code, shown)."""
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", _OWN_TERMINAL, *command], env=environment(), stdin=inside, stdout=inside, stderr=inside
    )
    os.close(inside)
    shown, pressed = b"", pressed_at is None
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other end was closed
            break
        if not part:
            break
        shown += part
        if not pressed and re.search(pressed_at, shown):
            pressed = True
            os.write(terminal, b"\x03")
    os.close(terminal)
    return process.wait(300), shown.decode()


def test_phases_then_a_bar_that_fits(command):
    code, shown = on_terminal(command(40))
    assert code == 0, shown
    frames = [frame for frame in re.split(r"[\r\n]|\x1b\[[0-9;?]*[A-Za-z]", shown) if frame]
    assert "importing JAX" in frames[0] or "starting" in frames[0] or "kanawa train" in frames[0]
    bars = [frame for frame in frames if "━" in frame or "╌" in frame]
    assert bars[-1].startswith("━")
    assert "40/40  loss" in bars[-1]
    assert max(map(len, bars)) < COLUMNS
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor is given back"
    assert "done: 40 steps" in shown


def test_ctrl_c_on_the_keyboard_saves_and_leaves_the_terminal_tidy(command):
    code, shown = on_terminal(command(100_000, "--set", "checkpoints.every_steps=100000"), rb"[1-9]\d*/100000  loss")
    assert code == 42, shown
    assert "stopped by Ctrl-C after step" in shown
    assert "to resume:" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_json_is_alone_on_stdout_and_plain_lines_have_no_control_codes(command):
    done = subprocess.run(command(3, "--json"), env=environment(), capture_output=True, text=True, check=True)
    outcome = json.loads(done.stdout)
    assert {key: outcome[key] for key in ("experiment", "outcome", "exit_code", "start_step", "step")} == {
        "experiment": "tiny-lm", "outcome": "done", "exit_code": 0, "start_step": 0, "step": 3,
    }  # fmt: skip
    assert outcome["checkpoint"].endswith("checkpoints/3")
    assert outcome["total_steps"] == 3
    assert isinstance(outcome["loss"], float)
    assert outcome.keys() >= {"run", "eval_loss", "eval_nats_per_byte", "signal"}
    assert not re.search(r"[\x1b\r\x08]", done.stderr)
    assert "step 3/3  loss" in done.stderr
