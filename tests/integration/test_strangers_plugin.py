"""A plugin built outside the repository is listed, chosen and trained with; else named."""

import pytest

SMALL = (
    *("--set", "batch_size=2", "--set", "data.sequence_length=32", "--set", "steps=2"),
    *("--set", "evaluation.max_batches=1"),
)
KERNEL = "attention.cpu.head-by-head"


@pytest.fixture
def with_example(installation, example_wheel):
    installation.install(example_wheel)
    return installation


def offered(installation, kind):
    components = installation.json("list", kind)
    return {c["name"]: c for c in components if c["distribution"] == "sashimono-example-layer"}


def test_all_three_components_are_listed(with_example):
    for kind, name in (
        ("layers", "squared-relu"),
        ("modifiers", "squared-relu"),
        ("kernels", KERNEL),
    ):
        found = offered(with_example, kind)
        assert found[name]["state"] == "available"
        assert found[name]["version"] == "0.1.0"


def test_the_modifier_changes_every_feed_forward_and_nothing_else(with_example):
    changes = with_example.json(
        "show", "quickstart", "--modify", "squared-relu", "--diff", "quickstart"
    )
    assert changes
    assert all("feed_forward" in change["path"] for change in changes)


def test_it_is_trained_with_and_its_kernel_is_chosen(with_example):
    arguments = ("train", "quickstart", "--modify", "squared-relu", "--run", "run", *SMALL)
    done = with_example.run(*arguments)
    assert done.returncode == 0, done.stderr
    events = with_example.events("run")
    chosen = {e["kernel"] for e in events if e["event"] == "kernel_selected"}
    assert KERNEL in chosen
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert len(losses) == 2
    config = (with_example.folder / "run" / "config.json").read_text()
    assert "sashimono_example_layer" in config


def test_its_kernel_gives_the_loss_of_the_others(with_example):
    pin = "execution.kernels={'attention': 'attention.any.reference'}"
    runs = {"theirs": (), "reference": ("--set", pin)}
    losses = {}
    for name, extra in runs.items():
        done = with_example.run("train", "quickstart", "--run", name, *SMALL, *extra)
        assert done.returncode == 0, done.stderr
        events = with_example.events(name)
        chosen = {e["kernel"] for e in events if e["event"] == "kernel_selected"}
        assert (KERNEL in chosen) == (name == "theirs")
        losses[name] = [event["loss"] for event in events if event["event"] == "step"]
    assert losses["theirs"] == pytest.approx(losses["reference"], rel=1e-5)


def test_without_it_the_error_names_what_is_missing(installation):
    done = installation.run("show", "quickstart", "--modify", "squared-relu")
    assert done.returncode == 2
    assert "squared-relu" in done.stderr
    assert "no installed distribution provides" in done.stderr


def test_a_run_made_with_it_says_so_when_it_is_gone(with_example):
    arguments = ("train", "quickstart", "--modify", "squared-relu", "--run", "run", *SMALL)
    assert with_example.run(*arguments).returncode == 0
    with_example.plugins = with_example.folder / "uninstalled"
    done = with_example.run("generate", "run", "--prompt", "def ")
    assert done.returncode != 0
    assert "sashimono_example_layer" in done.stderr or "sashimono-example-layer" in done.stderr
    assert "Traceback" not in done.stderr
