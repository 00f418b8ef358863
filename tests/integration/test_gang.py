"""One device, eight, two processes of four: the same losses; a gang stops and resumes together."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import tiny_lm

STEPS = 40


def command(run, *options):
    kanawa = str(pathlib.Path(sys.executable).with_name("kanawa"))
    return [kanawa, "train", "tiny-lm", "--run", str(run), "--steps", str(STEPS), *options]


def environment(devices):
    flags = f"--xla_force_host_platform_device_count={devices}"
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": tiny_lm.FOLDER}


def start(run, devices, *options):
    return subprocess.Popen(command(run, *options), env=environment(devices), stderr=subprocess.PIPE, text=True)


def start_gang(run, *options):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    joined = ("--coordinator", address, "--processes", "2", *options)
    return [start(run, 4, *joined, "--process-id", str(index)) for index in range(2)]


def finish(*processes):
    errors = [process.communicate(timeout=300)[1] for process in processes]
    return [process.returncode for process in processes], "\n".join(errors)


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


def wait_for(gang, condition):
    deadline = time.monotonic() + 200
    while not condition() and all(p.poll() is None for p in gang):
        assert time.monotonic() < deadline, "the gang makes no progress"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    run = tmp_path_factory.mktemp("one") / "run"
    codes, err = finish(start(run, 1))
    assert codes == [0], err
    return losses(run)


def test_eight_devices_give_the_losses_of_one(one_device, tmp_path):
    codes, err = finish(start(tmp_path / "run", 8))
    assert codes == [0], err
    started = next(e for e in events(tmp_path / "run") if e["event"] == "run_started")
    assert started["devices"].startswith("8 x")
    np.testing.assert_allclose(losses(tmp_path / "run"), one_device, rtol=1e-5)


def test_two_processes_give_the_losses_of_one_and_resume_together(one_device, tmp_path):
    run = tmp_path / "run"
    slow = ("--set", "checkpoints.every_steps=1")
    gang = start_gang(run, *slow)
    wait_for(gang, lambda: len(losses(run)) >= 8)
    gang[1].send_signal(signal.SIGTERM)
    codes, err = finish(*gang)
    assert codes == [42, 42], err
    stopped = events(run)[-1]
    assert (stopped["event"], stopped["outcome"]) == ("run_ended", "preempted")
    assert 8 <= stopped["step"] < STEPS
    # A terminal gives Ctrl-C to all of them; the coordination service makes one stop of it.
    gang = start_gang(run, *slow)
    wait_for(gang, lambda: len(losses(run)) > stopped["step"] + 2)
    for process in gang:
        process.send_signal(signal.SIGINT)
    codes, err = finish(*gang)
    assert codes == [42, 42], err
    assert events(run)[-1]["outcome"] == "stopped"
    assert "press Ctrl-C again to stop at once" in err
    codes, err = finish(*start_gang(run))
    assert codes == [0, 0], err
    assert [e["step"] for e in events(run) if e["event"] == "step"] == list(range(1, STEPS + 1))
    np.testing.assert_allclose(losses(run), one_device, rtol=1e-5)


def test_a_run_moves_from_two_processes_to_one_device(one_device, tmp_path):
    run = tmp_path / "run"
    half = ["--steps", "20"]
    codes, err = finish(*start_gang(run, *half))
    assert codes == [0, 0], err
    codes, err = finish(start(run, 1))
    assert codes == [0], err
    np.testing.assert_allclose(losses(run), one_device, rtol=1e-5)
