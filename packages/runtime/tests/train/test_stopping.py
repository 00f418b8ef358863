"""Signals at any time, to the real command in a real process: what is saved, what is said, the exit code.

Those that come before a run is open are in `test_start_up_signals`.
"""

import pathlib
import signal
import time

import pytest
from kanawa_runtime.runs.events import read_events, step_records
from kanawa_runtime.train.outcome import shown

COMMAND = ["train", "tiny-lm", "--set", "data=slow_data:SlowData"]
CADENCE = ["--set", "evaluation.every_steps=15", "--set", "checkpoints.every_steps=10"]
HERE = str(pathlib.Path(__file__).parent)


class Run:
    """One run directory, and the processes that write to it."""

    def __init__(self, nursery, folder):
        self.path = folder / "run"
        self.reached = folder / "reached"
        self._nursery, self._folder, self._started = nursery, folder, 0

    def start(self, steps=30, slow_at="", seconds=60.0):
        """Starts an attempt; `reached` appears once it is at its slow part."""
        self.reached.unlink(missing_ok=True)
        self._started += 1
        slow = {"SLOW_AT": slow_at, "SLOW_SECONDS": str(seconds), "SLOW_REACHED": str(self.reached)}
        command = [*COMMAND, "--run", str(self.path), "--steps", str(steps), *CADENCE]
        return self._nursery.start(command, self._folder / f"said.{self._started}", {**slow, "PYTHONPATH": HERE})

    def slow(self, where, **more):
        """Starts an attempt and returns once it is at its slow part."""
        process = self.start(slow_at=where, **more)
        wait(process, self.reached.exists)
        return process

    def events(self, *kinds):
        return [e for e in read_events(self.path / "events.jsonl") if e["event"] in kinds]

    def losses(self):
        return {step: e["loss"] for step, e in step_records(read_events(self.path / "events.jsonl")).items()}


def wait(process, condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.text()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ended(process, seconds=300):
    code, err = process.wait(seconds), process.text()
    assert "Traceback" not in err, err
    return code, err


@pytest.fixture
def run(nursery, tmp_path):
    return Run(nursery, tmp_path)


@pytest.fixture(scope="module")
def uninterrupted(nursery, tmp_path_factory):
    run = Run(nursery, tmp_path_factory.mktemp("whole"))
    code, err = ended(run.start())
    assert code == 0, err
    assert "starting at step 0 from new parameters" in err
    assert f"done: 30 steps; saved in {shown(run.path / 'checkpoints' / '30')}" in err
    assert f"kanawa eval {shown(run.path)}" in err
    assert [e["step"] for e in run.events("eval")] == [15, 30]
    return run.losses()


def test_while_waiting_for_data_the_last_step_is_saved(run, uninterrupted):
    process = run.slow("row")
    wait(process, lambda: run.events("step"))
    process.send_signal(signal.SIGINT)
    code, err = ended(process)
    (last,) = run.events("run_ended")
    saved = run.path / "checkpoints" / str(last["step"])
    assert code == 42, err
    assert (last["outcome"], last["signal"], last["checkpoint"]) == ("stopped", "Ctrl-C", str(saved))
    assert "stopping (Ctrl-C)" in err
    assert f"stopped by Ctrl-C after step {last['step']}; saved in {shown(saved)}" in err
    assert f"to resume: kanawa train tiny-lm --set data=slow_data:SlowData --run {run.path} --steps 30" in err
    assert (saved / "COMMIT.json").exists()
    code, err = ended(run.start())
    assert code == 0, err
    assert f"resuming at step {last['step']} from {shown(saved)}" in err
    assert run.losses() == uninterrupted


def test_in_an_evaluation_the_state_is_saved_and_the_evaluation_made_up_for(run, uninterrupted):
    process = run.slow("evaluation")
    process.send_signal(signal.SIGINT)
    code, err = ended(process)
    assert code == 42, err
    assert "stopped by Ctrl-C after step 15; saved in" in err
    assert not run.events("eval")
    code, err = ended(run.start())
    assert code == 0, err
    assert [e["step"] for e in run.events("eval")] == [15, 30]
    assert run.losses() == uninterrupted


def test_in_the_last_evaluation_nothing_is_lost_and_the_same_command_makes_it_up(run):
    assert ended(run.start(steps=12))[0] == 0
    process = run.slow("evaluation", steps=14)
    process.send_signal(signal.SIGINT)
    code, err = ended(process)
    assert code == 42, err
    assert "stopped by Ctrl-C after step 14; saved in" in err
    code, err = ended(run.start(steps=14))
    assert code == 0, err
    assert "the run has 14 steps already" in err
    assert [e["step"] for e in run.events("eval")] == [12, 14]


def test_while_data_is_read_a_new_run_stops_with_nothing_to_save(run):
    process = run.slow("digest")
    process.send_signal(signal.SIGTERM)
    code, err = ended(process)
    assert code == 143, err
    assert "stopped by SIGTERM before the first step; nothing was saved" in err
    assert "to resume: kanawa train tiny-lm" in err
    assert run.events("run_ended")[-1]["signal"] == "SIGTERM"
    assert ended(run.start(steps=5))[0] == 0


def test_while_compiling_a_resumed_run_has_lost_nothing(run):
    assert ended(run.start(steps=10))[0] == 0
    process = run.slow("compile", seconds=3)
    process.send_signal(signal.SIGINT)
    code, err = ended(process)
    assert code == 42, err
    assert "stopping (Ctrl-C) before the first step; press Ctrl-C again to stop at once" in err
    assert f"stopped by Ctrl-C after step 10; saved in {shown(run.path / 'checkpoints' / '10')}" in err


def test_a_second_ctrl_c_stops_at_once_even_while_a_compiler_holds_the_process(run):
    process = run.slow("compile", seconds=300)
    process.send_signal(signal.SIGINT)
    # Two signals of one kind that come before the process is looked at are one.
    time.sleep(2)
    assert process.poll() is None
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    code, err = ended(process)
    assert time.monotonic() - begin < 60
    assert code == 130, err
    assert "stopped at once by Ctrl-C; nothing was saved" in err
    assert run.events("run_ended")[-1]["outcome"] == "interrupted"
    assert ended(run.start(steps=5))[0] == 0
