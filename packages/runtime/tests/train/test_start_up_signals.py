"""SIGTERM and Ctrl-C while a run starts, to the real command: one line, the code of the table, nothing half-written."""

import itertools
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import tiny_lm
from kanawa_runtime.checkpoint.layout import committed_steps
from kanawa_runtime.runs.events import read_events
from xla_options import xla_flags

PROGRAM = pathlib.Path(__file__).with_name("slow_start.py")
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
#: Imported while plugins are looked for, as JAX is imported, while composing, and while a checkpoint is restored.
MODULES = ("kanawa_runtime.plugin", "jax", "kanawa_runtime.train.trainer", "orbax")
SLICE = (
    ("kanawa_runtime.plugin", signal.SIGTERM, ""),
    ("jax", signal.SIGTERM, "swallows"),
    ("kanawa_runtime.train.trainer", signal.SIGINT, ""),
)


def stopped_while(run, module, number, swallows=""):
    """Sends the signal while a module is imported; returns the exit code and the lines that were said."""
    reached = run.parent / "reached"
    reached.unlink(missing_ok=True)
    clean = {**os.environ, "XLA_FLAGS": xla_flags()}
    slow = {"SLOW_IMPORT": module, "SLOW_REACHED": str(reached), "SLOW_SWALLOWS": swallows}
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), "train", "tiny-lm", "--run", str(run), "--steps", "5"],
        env={**clean, **slow, "JAX_PLATFORMS": "cpu", "PYTHONPATH": tiny_lm.FOLDER},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 300
    while not reached.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    return process.returncode, err.splitlines()


def check(run, module, number, swallows):
    resumed = committed_steps(run / "checkpoints")
    code, lines = stopped_while(run, module, number, swallows)
    name = "SIGTERM" if number == signal.SIGTERM else "Ctrl-C"
    if module == "orbax":
        # The run is open by then, and says what it was stopped at; a checkpoint that is there can be gone on from.
        assert code == (42 if resumed else CODES[number]), lines
        assert any(line.startswith(f"stopped by {name} ") for line in lines), lines
        (ended,) = [e for e in read_events(run / "events.jsonl") if e["event"] == "run_ended"][-1:]
        assert (ended["signal"], ended["step"]) == (name, resumed[-1] if resumed else 0)
    else:
        assert code == CODES[number], lines
        told = [line for line in lines if name in line or "interrupted" in line]
        assert len(told) == 1, lines
    assert not any("Traceback" in line or "this is a bug" in line for line in lines), lines
    assert committed_steps(run / "checkpoints") == resumed


@pytest.mark.parametrize(("module", "number", "swallows"), SLICE)
def test_a_signal_while_something_is_imported(tmp_path, module, number, swallows):
    run = tmp_path / "run"
    check(run, module, number, swallows)
    assert not run.exists()


@pytest.mark.nightly
def test_a_signal_at_any_of_these_times_to_a_new_run_and_to_one_that_resumes(tmp_path, trained_run, record_drill):
    count = 0
    for module, number, swallows in itertools.product(MODULES, CODES, ("", "swallows")):
        check(trained_run, module, number, swallows)
        count += 1
        if module != "orbax":  # which a new run has no use for before its first save
            check(tmp_path / f"new-{count}", module, number, swallows)
            count += 1
    record_drill(f"drill: {count} of {count} signals during start-up ended in one line and the code of the table")


@pytest.fixture
def trained_run(tmp_path):
    from kanawa.composition.experiment import compose
    from kanawa_runtime.train.loop import Loop

    Loop(compose(tiny_lm.tiny()), tmp_path / "trained", steps=3).execute()
    return tmp_path / "trained"
