"""`kanawa plan` from end to end: the JSON's contract, the same step that trains, bad input before any compiler."""

import math
import os
from xml.etree import ElementTree

import pytest

#: The keys that machines may rely on.
KEYS = {
    "experiment", "target", "devices", "compiled", "fits", "memory_per_device_bytes", "memory_limit_bytes",
    "flops_per_step", "step_seconds", "step_seconds_by", "mfu", "mesh", "kernels", "suggestions",
}  # fmt: skip
SMALL = (
    *(
        "--set",
        "model.vocab_size=256",
        "--set",
        "data.vocab_size=256",
        "--set",
        "data.sequence_length=64",
        "--set",
        "batch_size=16",
    ),
    *("--set", "model.input_dim=64", "--set", "model.stack.layer.feed_forward.hidden_dim=128"),
    *("--set", "model.stack.layer.attention.num_heads=4", "--set", "model.stack.layer.attention.num_kv_heads=4"),
)


def test_a_plan_as_json_with_a_picture(installation):
    plan = installation.json(
        "plan", "llama2-7b", "--on", "cpu-8", *SMALL, "--modify", "remat:policy=full", "--picture", "mesh.svg"
    )
    assert set(plan) >= KEYS
    assert (plan["devices"], plan["compiled"], plan["fits"], plan["mesh"]) == (8, True, True, {"fsdp": 8})
    assert plan["step_seconds"] == pytest.approx(sum(plan["step_seconds_by"].values()))
    # 32 layers of width 64: four projections; gate, up and down; then the head.
    matmuls = 32 * (4 * 64 * 64 + 3 * 64 * 128) + 64 * 256
    attention = 32 * 4 * 64 * (64 + 1) / 2
    assert plan["model_flops_per_step"] == 3 * (2 * matmuls + attention) * 16 * 64
    # Remat repeats each layer but for its last matmul; CPU attention does all pairs, not only a causal mask's.
    assert 1.1 < plan["flops_per_step"] / plan["model_flops_per_step"] < 1.5
    # An eighth of the matrices and the embedding table; norms are whole everywhere. Four bytes each.
    norms = 32 * 2 * 64 + 64
    assert sum(row["parameters"] for row in plan["modules"]) == 4 * ((matmuls + 64 * 256) / 8 + norms)
    assert abs(plan["arguments_error"]) < 0.001
    assert any(row["axes"] == "fsdp" and row["kind"] == "all-gather" for row in plan["communication"])
    ElementTree.parse(installation.folder / "mesh.svg")


@pytest.mark.nightly
def test_targets_are_compared_by_time_and_cost(installation):
    (installation.folder / "prices.toml").write_text("cpu = 0.1\n")
    done = installation.run("plan", "tiny-lm", "--on", "cpu,cpu-8", "--compare", "--prices", "prices.toml")
    assert done.returncode == 0, done.stderr
    assert "by time" in done.stdout
    assert "by cost: cpu " in done.stdout


@pytest.mark.nightly
def test_a_saved_program_warms_a_run(installation, monkeypatch):
    done = installation.run("plan", "tiny-lm", "--on", "cpu-8", "--save", "saved")
    assert done.returncode == 0, done.stderr
    kept = {p.name for p in (installation.folder / "saved").glob("jit_train_step-*-cache")}
    assert kept
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(installation.folder / "saved"))
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "8")
    done = installation.run("train", "tiny-lm", "--on", "cpu-8", "--run", "run", "--steps", "1")
    assert done.returncode == 0, done.stderr
    assert {p.name for p in (installation.folder / "saved").glob("jit_train_step-*-cache")} == kept


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "tiny-lm"], ["plan needs a target: --on"]),
        (["plan", "tinny", "--on", "cpu-8"], ["did you mean 'tiny-lm'"]),
        (
            ["plan", "tiny-lm", "--on", "v9-8,v5p-7,cpu-8", "--set", "model.input_dim=12", "--set", "batch_size=9"],
            ["unknown device 'v9'", "v5p-7", "--on cpu-8", "batch_size"],
        ),
        (["plan", "tiny-lm", "--on", "cpu-8", "--modify", 'mesh:axes={"fsdp":16}'], ["execution.mesh.axes", "8"]),
        (["plan", "tiny-lm", "--on", "cpu-8", "--modify", 'mesh:axes={"fdsp":-1}'], ["'fdsp'", "did you mean 'fsdp'"]),
        (["plan", "tiny-lm", "--on", "cpu", "--prices", "none.toml"], ["none.toml", "expected device names to prices"]),
        (["plan", "tiny-lm", "--on", "h100-8,v5p-8"], ["kanawa-backends-gpu[compile]", "kanawa-backends-tpu[tpu]"]),
    ],
    ids=lambda value: " ".join(value)[5:60] if isinstance(value, list) else None,
)
def test_all_problems_at_once_before_anything_compiles(installation, arguments, said):
    done = installation.run(*arguments)
    assert done.returncode == 2, done.stderr
    for text in said:
        assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_help_has_an_example(installation):
    done = installation.run("plan", "--help")
    assert "kanawa plan llama2-7b --on v5p-512" in done.stdout


@pytest.mark.nightly
def test_what_cannot_fit_says_so_and_its_first_suggestion_does_fit(installation):
    """A batch whose activations are some ten times what an eighth of this machine's memory holds."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    rows = 2 ** round(math.log2(memory / 1500))
    plan = installation.json("plan", "tiny-lm", "--on", "cpu-8", "--set", f"batch_size={rows}")
    assert not plan["fits"]
    assert plan["memory_per_device_bytes"] > plan["memory_limit_bytes"]
    first = plan["suggestions"][0]
    assert first["verified"] and first["fits"], plan["suggestions"]
    assert first["memory_per_device_bytes"] <= plan["memory_limit_bytes"]
