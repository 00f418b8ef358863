"""A plugin built outside the repository is listed, chosen and trained with; else named."""

import dataclasses
import json

import pytest

SMALL = (
    *("--set", "batch_size=2", "--set", "data.sequence_length=32", "--set", "steps=2"),
    *("--set", "model.stack.num_layers=2", "--set", "evaluation.max_batches=1"),
    *("--set", "evaluation.final_batches=1"),
)
TRAIN = ("train", "quickstart", "--modify", "squared-relu", *SMALL)
KERNEL = "attention.cpu.head-by-head"
REFERENCE = "attention.any.reference"


@pytest.fixture(scope="module")
def with_example(fresh_installation, example_wheel):
    installation = fresh_installation()
    installation.install(example_wheel)
    return installation


@pytest.fixture(scope="module")
def trained(with_example):
    done = with_example.run(*TRAIN, "--run", "run")
    assert done.returncode == 0, done.stderr
    return with_example


def offered(installation, kind):
    components = installation.json("list", kind)
    return {c["name"]: c for c in components if c["distribution"] == "kanawa-example-layer"}


def chosen(events):
    return {event["kernel"] for event in events if event["event"] == "kernel_selected"}


def losses(events):
    return [event["loss"] for event in events if event["event"] == "step"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [("layers", "squared-relu"), ("modifiers", "squared-relu"), ("kernels", KERNEL)],
)
def test_its_components_are_listed(with_example, kind, name):
    found = offered(with_example, kind)[name]
    assert (found["state"], found["version"]) == ("available", "0.1.0")


def test_the_modifier_changes_every_feed_forward_and_nothing_else(with_example):
    changes = with_example.json("show", "quickstart", "--modify", "squared-relu", "--diff", "quickstart")
    assert changes
    assert all("feed_forward" in change["path"] for change in changes)


def test_it_is_trained_with_and_its_kernel_is_chosen(trained):
    events = trained.events("run")
    assert KERNEL in chosen(events)
    assert len(losses(events)) == 2
    config = json.loads((trained.folder / "run" / "config.json").read_text())
    layer = config["model"]["stack"]["layer"]["feed_forward"]
    assert layer["$type"].startswith("kanawa_example_layer")


@pytest.mark.nightly
def test_its_kernel_gives_the_loss_of_the_reference(trained):
    pin = f"execution.kernels={{'attention': '{REFERENCE}'}}"
    done = trained.run(*TRAIN, "--run", "reference", "--set", pin)
    assert done.returncode == 0, done.stderr
    events = trained.events("reference")
    assert KERNEL not in chosen(events)
    assert REFERENCE in chosen(events)
    assert losses(trained.events("run")) == pytest.approx(losses(events), rel=1e-5)


def test_without_it_the_error_names_what_is_missing(installation):
    done = installation.run("show", "quickstart", "--modify", "squared-relu")
    assert done.returncode == 2
    assert "no installed distribution provides 'squared-relu'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_made_with_it_says_so_when_it_is_gone(trained):
    without = dataclasses.replace(trained, plugins=trained.folder / "uninstalled")
    done = without.run("generate", "run", "--prompt", "def ")
    assert done.returncode != 0
    assert "kanawa_example_layer" in done.stderr or "kanawa-example-layer" in done.stderr
    assert "Traceback" not in done.stderr
