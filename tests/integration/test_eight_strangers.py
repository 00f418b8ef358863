"""Eight plugins of strangers, written from the documentation, side by side: each works from the command line."""

import importlib
import json
import pathlib
import signal
import sqlite3
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
import strangers
from kanawa.testing.cache import CacheConformance
from laid_out import lay_out

HOME = pathlib.Path(strangers.__path__[0])
POINTS = {
    "sink_cache": {
        "caches": {"streaming": "{me}.parts:SinkCache"},
        "masks": {"first-four": "{me}.parts:first_four"},
        "modifiers": {"streaming": "{me}.parts:UseSinks"},
    },
    "csv_texts": {"corpora": {"csv": "{me}.parts:CsvColumn"}, "data": {"blend": "{me}.parts:Mixture"}},
    "run_database": {"services": {"sqlite": "{me}.parts:Database"}},
    "loom": {"plugins": {"loom": "{me}.plugin:BACKEND"}, "kernels": {"rms_norm.loom.woven": "{me}.kernel:Woven"}},
    "confident": {
        "layers": {"confidence": "{me}.parts:Confidence"},
        "modifiers": {"confidence": "{me}.parts:AddConfidence"},
    },
    "row_norm": {"kernels": {"rms_norm.cpu.rows": "{me}.parts:Rows"}},
    "two_towers": {
        "models": {"two-towers": "{me}.parts:two_towers"},
        "experiments": {"two-towers": "{me}.parts:experiment"},
    },
    "counting": {"plugins": {"counting": "{me}.plugin"}},
}
SIZES = (
    *("batch_size=2", "data.sequence_length=32", "evaluation.max_batches=1", "evaluation.final_batches=1"),
    *("data.tokenizer.vocab_size=300", "model.vocab_size=300"),
)
SMALL = ("--steps", "2", *(text for size in SIZES for text in ("--set", size)))


@pytest.fixture(scope="module")
def eight(fresh_installation):
    """An installation with all of them."""
    made = fresh_installation()
    for name, points in POINTS.items():
        modules = {path.stem: path.read_text() for path in (HOME / name).glob("*.py")}
        lay_out(made.plugins, name.replace("_", "-"), points, modules)
    return made


def worked(eight, *arguments):
    """Runs a command that does its work, without a word about a plugin; returns its output."""
    done = eight.run(*arguments)
    assert done.returncode == 0, done.stderr
    assert "KANAWA_SKIP_PLUGINS" not in done.stderr
    return done.stdout


def test_all_are_usable(eight):
    states = {state["distribution"]: state["state"] for state in eight.json("plugins")}
    assert (states["loom"], states["counting"]) == ("loaded", "loaded")
    mine = {name.replace("_", "-") for name in POINTS} - {"counting"}
    listed = [state for state in eight.json("list") if state["distribution"] in mine]
    assert {state["distribution"] for state in listed} == mine
    assert {state["state"] for state in listed} == {"available"}


@pytest.fixture(scope="module")
def sunk(eight):
    """A run trained with the sinks' mask."""
    worked(eight, "train", "llama-tiny", *SMALL, "--modify", "streaming:window=8", "--run", "sunk")
    return "sunk"


PROMPT = "def __init__(self, name): return"


def test_the_sink_cache_decodes_what_the_whole_forward_says(eight, sunk):
    """The dense cache keeps all keys, and the mask hides the same ones of them."""
    greedy = ("--prompt", PROMPT, "--max-tokens", "24", "--temperature", "0", "--json")
    ours = json.loads(worked(eight, "generate", sunk, *greedy))
    program = (
        f"import json, kanawa as kn; run = kn.open({sunk!r}, modify='cache:kind=dense');"
        f"print(json.dumps(run.generate({PROMPT!r}, max_tokens=24, temperature=0).token_ids))"
    )
    environment = {"PYTHONPATH": str(eight.plugins), "JAX_PLATFORMS": "cpu", "HOME": str(eight.folder), "PATH": ""}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=eight.folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ours["token_ids"] == json.loads(done.stdout)
    assert len(ours["token_ids"]) == 24, "longer than the window"


@pytest.mark.nightly
def test_the_sink_cache_is_served(eight, sunk):
    generated = json.loads(
        worked(eight, "generate", sunk, "--prompt", PROMPT, "--max-tokens", "12", "--temperature", "0", "--json")
    )
    sizes = ("--set", "engine.max_sequences=2", "--set", "engine.max_length=96")
    environment = {"PYTHONPATH": str(eight.plugins), "JAX_PLATFORMS": "cpu", "HOME": str(eight.folder), "PATH": ""}
    command = [sys.executable, "-m", "kanawa.cli", "serve", sunk, "--port", "0", "--json", *sizes]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    server = subprocess.Popen(command, cwd=eight.folder, env=environment, **pipes)
    try:
        line = server.stdout.readline()
        assert line, server.communicate()[1]
        body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "return_token_ids": True}
        request = urllib.request.Request(
            f"{json.loads(line)['url']}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            (choice,) = json.load(answer)["choices"]
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    assert choice["token_ids"] == generated["token_ids"]


def test_csv_files_are_mixed_into_the_text(eight):
    rows = "".join(f'{number},"the text of row {number}, with a comma"\n' for number in range(60))
    (eight.folder / "texts.csv").write_text(f"id,body\n{rows}")
    sets = (
        *("data=blend", "data.sequence_length=32", "data.second.corpus.files=[texts.csv]"),
        *("data.second.corpus.column=body", "batch_size=4", "evaluation.final_batches=1"),
    )
    sets = [text for each in sets for text in ("--set", each)]
    worked(eight, "train", "llama-tiny", "--steps", "2", *sets, "--run", "mixed")
    assert len([event for event in eight.events("mixed") if event["event"] == "step"]) == 2
    sets[sets.index("data.second.corpus.column=body")] = "data.second.corpus.column=text"
    done = eight.run("train", "llama-tiny", "--steps", "2", *sets, "--run", "unmixed")
    assert done.returncode != 0
    assert "texts.csv has no column 'text'" in done.stderr
    assert "KANAWA_SKIP_PLUGINS=csv-texts" in done.stderr


def test_the_database_has_every_step(eight):
    worked(eight, "train", "tiny-lm", "--steps", "3", "--modify", "service:name=sqlite", "--run", "kept")
    with sqlite3.connect(eight.folder / "kept" / "steps.sqlite") as connection:
        rows = connection.execute("SELECT attempt, step, loss FROM steps").fetchall()
    steps = [event for event in eight.events("kept") if event["event"] == "step"]
    assert rows == [(event["attempt"], event["step"], event["loss"]) for event in steps]
    assert len(rows) == 3


def test_the_invented_accelerator_is_planned_for_with_its_kernel(eight):
    plan = json.loads(worked(eight, "plan", "llama-tiny", "--on", "loom-8", "--quick", "--json"))
    plan = plan[0] if isinstance(plan, list) else plan
    assert (plan["target"], plan["devices"], plan["mesh"]["fsdp"]) == ("loom-8", 8, 8)
    kernels = eight.json("kernels", "llama-tiny", "--on", "loom-8")
    assert {choice["kernel"] for choice in kernels if choice["operation"] == "rms_norm"} == {"rms_norm.loom.woven"}
    assert "weave by hand" in eight.run("doctor").stdout


def test_the_penalty_is_trained_with_and_reported_by_its_name(eight):
    worked(eight, "train", "llama-tiny", *SMALL, "--modify", "confidence:coefficient=0.5", "--run", "unsure")
    step = next(event for event in eight.events("unsure") if event["event"] == "step")
    # At first every prediction is nearly uniform over 300 tokens, and so is its entropy.
    assert abs(step["loss"] - np.log(300)) < 0.5, "the first term alone is the loss that is reported"
    assert "confidence" in json.dumps(step), step


def test_the_norm_kernel_is_chosen_and_gives_the_reference_loss(eight):
    losses = {}
    for run, pin in (("ours", ()), ("theirs", ("--set", "execution.kernels={'rms_norm': 'rms_norm.any.reference'}"))):
        worked(eight, "train", "llama-tiny", *SMALL, *pin, "--run", run)
        events = eight.events(run)
        chosen = {event["kernel"] for event in events if event["event"] == "kernel_selected"}
        assert ("rms_norm.cpu.rows" in chosen) == (not pin)
        losses[run] = [event["loss"] for event in events if event["event"] == "step"]
    np.testing.assert_allclose(losses["ours"], losses["theirs"], rtol=1e-5)


def test_two_towers_are_trained(eight):
    worked(eight, "train", "two-towers", "--steps", "3", "--run", "towers")
    losses = [event["loss"] for event in eight.events("towers") if event["event"] == "step"]
    assert len(losses) == 3
    assert all(0 < loss < 10 + np.log(4) for loss in losses), "scores are at most 10 apart, among four rows"


def test_the_verb_counts(eight):
    assert json.loads(worked(eight, "counting", "--json"))["sink-cache"] == 3


class TestSinkCache(CacheConformance):
    """Of what its window holds it promises what every cache does; `reach` leaves the rest alone."""

    cuts = (3, 1, 2, 1)

    @pytest.fixture(autouse=True)
    def on_path(self, monkeypatch):
        monkeypatch.syspath_prepend(str(HOME))
        self.module = importlib.import_module("sink_cache.parts")
        yield
        for name in [name for name in sys.modules if name.startswith("sink_cache")]:
            del sys.modules[name]

    def config(self):
        return self.module.SinkCache.Config(num_kv_heads=2, key_dim=4, value_dim=4, reach=3, window=3)
