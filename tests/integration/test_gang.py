"""One device, eight, two processes of four: the same losses; a gang stops and resumes together."""

import json
import signal

import gangs
import numpy as np
import pytest
from gangs import finish, wait_for

STEPS = 40


def start(nursery, run, devices, *options):
    return gangs.start(nursery, run, devices, "--steps", str(STEPS), *options)


def start_gang(nursery, run, *options, fault=""):
    return gangs.start_gang(nursery, run, "--steps", str(STEPS), *options, fault=fault)


def events(run):
    path = run / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def losses(run):
    by_step = {e["step"]: e["loss"] for e in events(run) if e["event"] == "step"}
    return [by_step[step] for step in sorted(by_step)]


@pytest.fixture(scope="module")
def one_device(nursery, tmp_path_factory):
    run = tmp_path_factory.mktemp("one") / "run"
    codes, err = finish(start(nursery, run, 1))
    assert codes == [0], err
    return losses(run)


def test_eight_devices_give_the_losses_of_one(nursery, one_device, tmp_path):
    codes, err = finish(start(nursery, tmp_path / "run", 8))
    assert codes == [0], err
    started = next(e for e in events(tmp_path / "run") if e["event"] == "run_started")
    assert started["devices"].startswith("8 x")
    np.testing.assert_allclose(losses(tmp_path / "run"), one_device, rtol=1e-5)


def test_two_processes_give_the_losses_of_one_and_resume_together(nursery, one_device, tmp_path):
    run = tmp_path / "run"
    slow = ("--set", "checkpoints.every_steps=1")
    # So that it is still there to be stopped, however long this process waits for its turn.
    busy = "in_step:sleep=0.1:1+"
    gang = start_gang(nursery, run, *slow, fault=busy)
    wait_for(gang, lambda: len(losses(run)) >= 8)
    gang[1].send_signal(signal.SIGTERM)
    codes, err = finish(*gang)
    assert codes == [42, 42], err
    stopped = events(run)[-1]
    assert (stopped["event"], stopped["outcome"]) == ("run_ended", "preempted")
    assert 8 <= stopped["step"] < STEPS
    # A terminal gives Ctrl-C to all of them; the coordination service makes one stop of it.
    gang = start_gang(nursery, run, *slow, fault=busy)
    wait_for(gang, lambda: len(losses(run)) > stopped["step"] + 2)
    for process in gang:
        process.send_signal(signal.SIGINT)
    codes, err = finish(*gang)
    assert codes == [42, 42], err
    assert events(run)[-1]["outcome"] == "stopped"
    assert "press Ctrl-C again to stop at once" in err
    codes, err = finish(*start_gang(nursery, run))
    assert codes == [0, 0], err
    assert [e["step"] for e in events(run) if e["event"] == "step"] == list(range(1, STEPS + 1))
    np.testing.assert_allclose(losses(run), one_device, rtol=1e-5)


@pytest.mark.nightly
def test_a_run_moves_from_two_processes_to_one_device(nursery, one_device, tmp_path):
    run = tmp_path / "run"
    half = ["--steps", "20"]
    codes, err = finish(*start_gang(nursery, run, *half))
    assert codes == [0, 0], err
    codes, err = finish(start(nursery, run, 1))
    assert codes == [0], err
    np.testing.assert_allclose(losses(run), one_device, rtol=1e-5)
