"""What a user gets wrong gets an answer: what was asked, what exists, what to do, and exit code 2."""

import json

import pytest


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "quickstrat"], ["quickstrat", "did you mean 'quickstart'"]),
        (["show", "quickstart", "--modify", "mo"], ["'mo'", "moe"]),
        (["show", "quickstart", "--modify", "moe:num_expert=4"], ["num_expert", "did you mean 'num_experts'"]),
        (["show", "quickstart", "--modify", "moe:num_experts=many"], ["num_experts", "many", "int"]),
        (["show", "quickstart", "--modify", "moe:num_experts=1"], ["num_experts (1) is less than router.top_k (2)"]),
        (["show", "quickstart", "--set", "model.stack.layers=3"], ["layers", "did you mean 'layer'"]),
        (["show", "quickstart", "--set", "batch_size=big"], ["batch_size", "big", "int"]),
        (
            ["show", "quickstart", "--set", "batch_size=0", "--set", "steps=-1"],
            ["batch_size=0: expected int (at least 1)", "steps=-1"],
        ),
        (["show", "quickstart", "--set", "model.stack.layer.attention.num_heads=5"], ["not a multiple"]),
        (["show", "quickstart", "--on", "v9-8"], ["unknown device 'v9'"]),
        (["show", "quickstart", "--on", "v5p-7"], ["v5p-7", "whole number of chips", "v5p-8"]),
        (["show", "quickstart", "--on", "cpu-8", "--set", "model.no=1"], ["no field 'no'"]),
        (["train", "quickstart", "--steps", "0"], ["--steps is 0, expected at least 1"]),
        (["generate", "nowhere", "--prompt", "x"], ["there is no run nowhere", "--run nowhere starts one"]),
        (["eval", "nowhere"], ["there is no run nowhere", "--run nowhere starts one"]),
        (["train", "quickstart", "--coordinator", "x:1"], ["go together"]),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_wrong_words(installation, arguments, said):
    done = installation.run(*arguments)
    assert done.returncode == 2, done.stderr
    for text in said:
        assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_modifiers_change_what_they_say_and_nothing_else(installation):
    found = installation.json("show", "llama2-70b", "--modify", "moe:num_experts=8", "--diff", "llama2-70b")
    assert {c["path"].split("feed_forward")[0] for c in found} == {"model.stack.layer."}
    found = installation.json("show", "llama2-70b", "--modify", "rope-ntk:factor=4", "--diff", "llama2-70b")
    assert {c["path"].split("positions")[0] for c in found} == {"model.stack.layer.attention."}


def test_why_names_every_hand_that_touched_a_value(installation):
    found = installation.json("show", "quickstart", "--set", "batch_size=4", "--why", "batch_size")
    assert [entry["set_by"].split()[0] for entry in found] == ["default", "experiment", "command"]
    assert found[-1]["value"] in (4, "4")
    assert found[1]["where"].endswith(".py") or ".py:" in found[1]["where"]


def test_data_that_does_not_fit_the_model(installation):
    done = installation.run("train", "quickstart", "--steps", "1", "--set", "model.vocab_size=100")
    assert done.returncode == 2
    assert "data has 2048 token ids, but model.vocab_size is 100" in done.stderr


def test_an_empty_corpus(installation):
    (installation.folder / "text").mkdir()
    done = installation.run(
        "train",
        "quickstart",
        "--steps",
        "1",
        "--set",
        "data.corpus=text-files",
        "--set",
        'data.corpus.files=["text/*.txt"]',
    )
    assert done.returncode == 2, done.stderr
    assert "text/*.txt" in done.stderr


def test_damaged_config_leaves_checkpoints_alone(installation):
    assert installation.run("train", "tiny-lm", "--run", "run", "--steps", "5").returncode == 0
    path = installation.folder / "run" / "config.json"
    path.write_text(path.read_text()[:100])
    done = installation.run("train", "tiny-lm", "--run", "run", "--steps", "9")
    assert done.returncode == 2
    assert "its checkpoints are intact (steps [5])" in done.stderr


def test_a_run_of_a_newer_version(installation):
    assert installation.run("train", "tiny-lm", "--run", "run", "--steps", "5").returncode == 0
    path = installation.folder / "run" / "plugins.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "format": 99}))
    done = installation.run("train", "tiny-lm", "--run", "run", "--steps", "9")
    assert done.returncode == 2
    assert "Upgrade kanawa-runtime" in done.stderr
