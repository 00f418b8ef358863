"""What `plan --search` finds trains: its winner's modifiers run a step through the command line."""

import json
import os
import subprocess
import sys

import pytest
from xla_options import xla_flags


def kanawa(*words):
    """Returns what a command printed; its failure fails the test."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags(), "JAX_NUM_CPU_DEVICES": "4"}
    done = subprocess.run([sys.executable, "-m", "kanawa.cli", *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
def test_the_winner_of_a_search_trains(tmp_path):
    best, run = tmp_path / "best.json", tmp_path / "run"
    fixed = ["--fix", "data=1", "--fix", "policy=dots", "--fix", "microbatches=2"]
    small = ["--set", "model.stack.num_layers=2", "--set", "batch_size=8"]
    words = ["quickstart", "--on", "cpu-4", "--search", "--verify", "0", *fixed, *small, "--write", str(best), "--json"]
    result = json.loads(kanawa("plan", *words))
    winner = json.loads(best.read_text())
    assert result["winner"]["modifiers"] == winner["modifiers"] and result["by_rule"]["cpu-4"]["step_seconds"]
    modifiers = [word for each in winner["modifiers"] for word in ("--modify", each)]
    words = ["train", "quickstart", "--on", "cpu-4", *modifiers, *small, "--steps", "1", "--run", str(run)]
    kanawa(*words)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert any(event["event"] == "step" for event in events)
