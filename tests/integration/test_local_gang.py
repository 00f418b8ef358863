"""`kanawa launch local` with real processes: one is killed, all start again, and nothing shows in the losses."""

import json
import os
import signal
import subprocess
import sys
import time

import tiny_lm
from kanawa_runtime.launch.local.state import folder_of, read_state
from kanawa_runtime.runs.events import read_events, step_records
from xla_options import xla_flags

STEPS = "40"
SECONDS = 600


def launch(run, *options, fault=""):
    environment = {**os.environ, "PYTHONPATH": tiny_lm.FOLDER, "KANAWA_FAULT": fault, "XLA_FLAGS": xla_flags()}
    command = [sys.executable, "-m", "kanawa.cli", "launch", "local", "tiny-lm", "--processes", "2", "--run", str(run)]
    command += ["--steps", STEPS, "--set", "checkpoints.every_steps=4", "--option", "backoff_seconds=0.1", *options]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def losses(run):
    return {step: record["loss"] for step, record in step_records(read_events(run / "events.jsonl")).items()}


def test_a_killed_process_restarts_the_gang_and_the_losses_stay(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    undisturbed = launch(whole)
    # So that it is still there to be killed, however long this process waits for its turn.
    disturbed = launch(killed, fault="in_step:sleep=0.1:1+")
    deadline = time.monotonic() + SECONDS
    while not any(event["event"] == "checkpoint_committed" for event in read_events(killed / "events.jsonl")):
        assert disturbed.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(read_state(folder_of(killed))["pids"][1], signal.SIGKILL)
    said = disturbed.communicate(timeout=SECONDS)[1]
    assert disturbed.returncode == 0, said
    assert "starting all of them again in 0 s, restart 1 of 10" in said
    # What the first process says is shown, across attempts.
    assert "done: 40 steps" in said
    assert undisturbed.communicate(timeout=SECONDS) is not None and undisturbed.returncode == 0
    assert losses(killed) == losses(whole) and len(losses(whole)) == int(STEPS)


def test_what_no_other_start_would_mend_ends_the_gang_at_once(tmp_path):
    refused = launch(tmp_path / "run", "--set", "no.such=1")
    said = refused.communicate(timeout=SECONDS)[1]
    assert refused.returncode == 2
    assert "no.such" in said and "starting all of them again" not in said
    assert "has no field 'no'" in said and "starting all of them again" not in said


def test_a_gang_does_what_services_ask_at_one_step(tmp_path):
    service = json.dumps({"patience": 1, "higher_is_better": True, "factor": 0.5}, separators=(",", ":"))
    options = ["--modify", f"service:name=rate-on-plateau,values={service}", "--set", "learner.steerable=true"]
    stopping = json.dumps({"patience": 3, "higher_is_better": True}, separators=(",", ":"))
    options += ["--modify", f"service:name=early-stopping,values={stopping}", "--set", "data.held_out_rows=16"]
    steered = launch(tmp_path / "run", *options, "--set", "evaluation.every_steps=2")
    said = steered.communicate(timeout=SECONDS)[1]
    assert steered.returncode == 0, said
    events = read_events(tmp_path / "run" / "events.jsonl")
    asked = [(event["step"], event["stop"], event["rate"]) for event in events if event["event"] == "steered"]
    assert asked == [(4, False, 0.5), (6, False, 0.5), (8, True, 0.5)]
    rates = {event["step"]: event["metrics"]["learning_rate"] for event in events if event["event"] == "step"}
    assert max(rates) == 8
    assert [rates[step] / rates[1] for step in (4, 5, 7)] == [1.0, 0.5, 0.25]
    assert "stopped early (EarlyStopping: loss was best at step 2" in said
