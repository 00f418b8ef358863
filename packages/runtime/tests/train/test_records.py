"""What an attempt says of its start and of its compiled step, against the system and against counting by hand."""

import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest
from kanawa.contracts import Environment
from kanawa_runtime.runs.environment_record import git_record, launch_record
from kanawa_runtime.train.program_record import by_module, memory_peaks, program_record
from tiny_lm import tiny


@pytest.fixture(autouse=True)
def outside_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run in a folder below a repository, such as nox's: git looks no higher than theirs."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_commit_of_the_working_folder(tmp_path: Path) -> None:
    assert git_record(tmp_path) is None
    git(tmp_path, "init", "-q", "-b", "topic")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "unknown").write_text("to git")
    assert git_record(tmp_path) == {"commit": commit, "branch": "topic", "dirty": False}
    (tmp_path / "file").write_text("2")
    assert git_record(tmp_path)["dirty"] is True


def test_the_command_can_be_typed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/kanawa", "train", "tiny", "--data", "my text/**"])
    monkeypatch.chdir(tmp_path)
    record = launch_record()
    assert record["command"] == "kanawa train tiny --data 'my text/**'"
    assert record["working_directory"] == str(tmp_path)
    assert record["processor"]
    assert record["git"] is None


def test_the_compiled_step() -> None:
    trainer = tiny().build()
    program = trainer.programs(Environment())["train_step"]
    state = program.abstract_args[0]
    record = program_record(trainer, program.lower().compile(), "float32")
    sizes = [int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(state.params)]
    assert record["parameters"] == record["trained_parameters"] == sum(sizes)
    assert sum(record["parameters_by_module"].values()) == sum(sizes)
    held = sum(leaf.dtype.itemsize * int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(state))
    assert record["memory_per_device_bytes"]["state and batch"] >= held
    # A processor's figures are placeholders: nothing is derived from them.
    assert record["peak_flops_per_chip"] is None
    assert record["chips"] == jax.device_count()


def test_modules_are_counted_to_a_depth() -> None:
    counts = {"embedding.weight": 8, "stack.layer.norm.scale": 2, "stack.layer.attention.query.weight": 3}
    counts["stack.layer.attention.key.weight"] = 4
    assert by_module(counts) == {"embedding": 8, "stack.layer.norm": 2, "stack.layer.attention": 7}
    assert by_module(counts, depth=1) == {"embedding": 8, "stack": 9}
    assert by_module({"alone": 1}) == {"alone": 1}


def test_the_process_has_a_peak() -> None:
    peaks = memory_peaks()
    assert peaks["process_peak_bytes"] > 50_000_000
    assert peaks["device_peak_bytes"] is None
