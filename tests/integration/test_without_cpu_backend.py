"""Training and generation on a CPU without kanawa-backends-cpu: core's references compute the same numbers."""

import json
import os
import subprocess

import pytest
from xla_options import xla_flags

SMALL = (
    *("--steps", "2", "--set", "sample_prompt=None", "--set", "data=random-tokens", "--set", "data.vocab_size=512"),
    *("--set", "data.sequence_length=128", "--set", "batch_size=2", "--set", "model.stack.num_layers=1"),
    *("--set", "evaluation.final_batches=1"),
)


@pytest.fixture
def kanawa(tmp_path, warm_command):
    """Returns a function that runs a verb with or without the backend; returns what it wrote."""

    def run(*arguments, without):
        environment = {**os.environ, "XLA_FLAGS": xla_flags(), "JAX_PLATFORMS": "cpu"}
        environment |= {"KANAWA_SKIP_PLUGINS": "kanawa-backends-cpu" if without else ""}
        command = [warm_command, *arguments]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_references_train_to_the_same_loss_and_generate(kanawa, tmp_path):
    losses, kernels = {}, {}
    for name, without in (("with", False), ("without", True)):
        kanawa("train", "quickstart", "--run", name, *SMALL, without=without)
        events = [json.loads(line) for line in (tmp_path / name / "events.jsonl").read_text().splitlines()]
        losses[name] = [event["loss"] for event in events if event["event"] == "step"]
        kernels[name] = {event["kernel"] for event in events if event["event"] == "kernel_selected"}
    assert {kernel for kernel in kernels["with"] if kernel.startswith("attention.cpu.")}
    assert "attention.any.reference" in kernels["without"]
    assert not [kernel for kernel in kernels["without"] if ".any." not in kernel]
    assert losses["without"] == pytest.approx(losses["with"], rel=1e-4)
    prompt = ("generate", "with", "--prompt-ids", "1,2,3", "--max-tokens", "4", "--temperature", "0", "--json")
    answers = [json.loads(kanawa(*prompt, without=without)) for without in (False, True)]
    assert answers[0]["token_ids"] == answers[1]["token_ids"]
    assert answers[0]["logprobs"] == pytest.approx(answers[1]["logprobs"], rel=1e-3)
