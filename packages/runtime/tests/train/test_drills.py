"""Fire drills on the real command in real processes: kills, stops, full disks, another experiment; counted.

Kills, stops and full disks come at random times (PYTEST_SEED repeats them); the nightly ones are the same, more often:
KANAWA_DRILLS of each, 20 unless set.
"""

import itertools
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import time

import pytest
import tiny_lm
from drills import drill_seed
from kanawa_runtime.exit_codes import LOST
from kanawa_runtime.runs.events import read_events, step_records
from nursery import Child
from xla_options import xla_flags

STEPS = 300
MANY = int(os.environ.get("KANAWA_DRILLS", "20"))
#: A stop comes before the end, however long this process, which sends it, has to wait for its turn.
UNHURRIED = "in_step:sleep=0.1:40+"
COMMAND = [sys.executable, "-m", "kanawa.cli", "train", "tiny-lm"]
OPTIONS = ["--steps", str(STEPS), "--set", "checkpoints.every_steps=40"]
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def start(nursery, tmp_path_factory):
    """Starts the command: `start(run, *options, fault="")`."""
    said = tmp_path_factory.mktemp("said")

    def begin(run, *options, fault=""):
        command = ["train", "tiny-lm", "--run", str(run), *(options or OPTIONS)]
        return nursery.start(command, said / str(next(NUMBERS)), {"KANAWA_FAULT": fault})

    return begin


@pytest.fixture(scope="module")
def finish(start):
    """Runs the command to its end: `finish(run, *options)` returns its exit code and what it said."""

    def to_the_end(run, *options):
        process = start(run, *options)
        return process.wait(300), process.text()

    return to_the_end


def losses(run):
    records = step_records(read_events(pathlib.Path(run) / "events.jsonl"))
    return {step: record["loss"] for step, record in records.items()}


def steps_logged(run):
    path = pathlib.Path(run) / "events.jsonl"
    return path.read_bytes().count(b'"event": "step"') if path.exists() else 0


def wait_for_steps(process, run, count):
    deadline = time.monotonic() + 300
    while steps_logged(run) < count and process.poll() is None:
        assert time.monotonic() < deadline, "the run makes no progress"
        time.sleep(0.001)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, finish):
    run = tmp_path_factory.mktemp("golden") / "run"
    code, err = finish(run)
    assert code == 0, err
    found = losses(run)
    assert list(found) == list(range(1, STEPS + 1))
    return found


def test_two_runs_are_the_same_bit_for_bit(uninterrupted, finish, tmp_path):
    """Without this, the kill test would prove nothing."""
    assert finish(tmp_path / "run")[0] == 0
    assert losses(tmp_path / "run") == uninterrupted


def chance():
    return random.Random(drill_seed())


def interrupted(start, run, rng, count, act):
    """Starts the command `count` times, has `act` end it after a random number of steps, and then lets it finish."""
    for steps in sorted(rng.randrange(1, STEPS - 20) for _ in range(count)):
        process = start(run)
        wait_for_steps(process, run, steps)
        # Also between two steps, in the middle of a write, and before the first new step of a resumed run.
        time.sleep(rng.uniform(0, 0.02))
        act(process)
        process.wait(300)
    assert start(run).wait(300) == 0


def test_killed_at_random_the_losses_are_those_of_the_uninterrupted_run(start, uninterrupted, tmp_path, record_drill):
    kills_resume(start, uninterrupted, tmp_path / "run", 4, record_drill)


@pytest.mark.nightly
def test_killed_many_times(start, uninterrupted, tmp_path, record_drill):
    kills_resume(start, uninterrupted, tmp_path / "run", MANY, record_drill)


def kills_resume(start, uninterrupted, run, count, record_drill):
    interrupted(start, run, chance(), count, Child.kill)
    assert losses(run) == uninterrupted
    record_drill(f"drill: {count} of {count} kills resumed bit for bit")


@pytest.mark.nightly
def test_stopped_many_times(start, uninterrupted, tmp_path, record_drill):
    rng, codes = chance(), []

    def stop(process):
        process.send_signal(rng.choice([signal.SIGTERM, signal.SIGINT]))
        process.wait(300)
        # As a shell reports it: a signal that comes before Python has read a line of ours is the system's to answer.
        codes.append(process.returncode if process.returncode >= 0 else 128 - process.returncode)

    interrupted(start, tmp_path / "run", rng, MANY, stop)
    # One that comes when all is done finds nothing to stop.
    assert set(codes) <= {42, 0, 143, 130}
    assert losses(tmp_path / "run") == uninterrupted
    record_drill(f"drill: {MANY} of {MANY} stops resumed bit for bit, {codes.count(42)} saved with code 42")


def with_pipes(run, *options, fault="", says=subprocess.DEVNULL):
    """Starts the command with no file for what it says, which a full disk would end too."""
    return subprocess.Popen(
        [*COMMAND, "--run", str(run), *(options or OPTIONS)],
        env=environment() | {"KANAWA_FAULT": fault},
        stdout=subprocess.DEVNULL,
        stderr=says,
        text=True,
    )


def environment():
    return {**os.environ, "XLA_FLAGS": xla_flags(), "JAX_PLATFORMS": "cpu", "PYTHONPATH": tiny_lm.FOLDER}


def filled_up(process):
    """Leaves the process no room in any file: events and checkpoints alike fail with EFBIG, in C++ too."""
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1000, 1000))


@pytest.mark.parametrize("checkpointer", [pytest.param("orbax", marks=pytest.mark.nightly), "sharded"])
def test_sigterm_on_a_full_disk_says_what_is_kept(finish, uninterrupted, tmp_path, checkpointer):
    run = tmp_path / "run"
    options = (*OPTIONS, "--set", f"checkpointer={checkpointer}")
    process = with_pipes(run, *options, fault=UNHURRIED, says=subprocess.PIPE)
    wait_for_steps(process, run, 90)
    filled_up(process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=300)
    assert process.returncode == LOST, err
    assert "Traceback" not in err, err
    kept = "is not saved; the newest intact step is"
    for part in ("could not be saved to", "File too large", "stopped by SIGTERM after step", kept):
        assert part in err
    assert finish(run, *options)[0] == 0
    assert losses(run) == uninterrupted


@pytest.mark.nightly
def test_the_disk_fills_up_many_times(uninterrupted, tmp_path, record_drill):
    rng = chance()

    def fill(process):
        if process.poll() is None:
            filled_up(process)
            time.sleep(rng.uniform(0, 0.5))
            process.kill() if rng.random() < 0.5 else process.send_signal(signal.SIGTERM)

    interrupted(with_pipes, tmp_path / "run", rng, MANY, fill)
    # Events that found no room are lost, and their steps with them; those that are there are right.
    logged = losses(tmp_path / "run")
    assert logged == {step: uninterrupted[step] for step in logged}
    assert logged[STEPS] == uninterrupted[STEPS]
    record_drill(f"drill: {MANY} of {MANY} full disks resumed bit for bit")


def test_sigterm_saves_exits_42_and_resumes(start, finish, uninterrupted, tmp_path):
    run = tmp_path / "run"
    process = start(run, fault=UNHURRIED)
    wait_for_steps(process, run, 50)
    process.send_signal(signal.SIGTERM)
    code, err = process.wait(300), process.text()
    assert code == 42, err
    events = read_events(run / "events.jsonl")
    assert events[-1]["event"] == "run_ended"
    assert events[-1]["outcome"] == "preempted"
    saved = [e["step"] for e in events if e["event"] == "checkpoint_committed"]
    assert saved[-1] == events[-1]["step"]
    assert finish(run)[0] == 0
    assert losses(run) == uninterrupted


def test_a_finished_run_says_so_and_exits_0(finish, tmp_path):
    assert finish(tmp_path / "run", "--steps", "10")[0] == 0
    code, err = finish(tmp_path / "run", "--steps", "10")
    assert code == 0
    assert "the run has 10 steps already; ask for more with --steps" in err


def test_nan_stops_the_run_and_keeps_every_checkpoint(finish, tmp_path):
    run = tmp_path / "run"
    assert finish(run, "--steps", "40")[0] == 0
    code, err = finish(tmp_path / "bad", "--set", "learner.schedule.peak=1e38", "--set", "learner.clip_norm=null")
    assert code == 1
    assert "nothing of this step is saved, and every earlier checkpoint is intact" in err
    events = read_events(tmp_path / "bad" / "events.jsonl")
    assert events[-1]["outcome"] == "failed"
    assert any(e["event"] == "step" and e["loss"] in ("nan", "inf", "-inf") for e in events)


def test_another_experiment_is_refused_naming_the_difference(finish, tmp_path):
    run = tmp_path / "run"
    assert finish(run, "--steps", "5")[0] == 0
    code, err = finish(run, "--set", "model.input_dim=16")
    assert code == 2
    assert "belongs to another experiment" in err
    assert "model.input_dim" in err


def test_more_steps_and_another_cadence_are_the_same_experiment(finish, uninterrupted, tmp_path):
    run = tmp_path / "run"
    assert finish(run, "--steps", "30")[0] == 0
    assert finish(run, "--steps", "60", "--set", "checkpoints.every_steps=7")[0] == 0
    found = losses(run)
    assert found == {step: uninterrupted[step] for step in range(1, 61)}


def test_a_disk_that_fills_up_loses_nothing(finish, tmp_path):
    """RLIMIT_FSIZE makes every file of the checkpoint fail with EFBIG, also in C++."""
    run = tmp_path / "run"
    assert finish(run, "--steps", "40")[0] == 0
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000));"
        "from kanawa.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, "train", "tiny-lm", "--run", str(run), "--steps", "60"],
        env=environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    code, err = finish(run, "--steps", "60")
    assert code == 0, err
    assert list(losses(run)) == list(range(1, 61))
