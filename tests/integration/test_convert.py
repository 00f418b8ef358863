"""`kanawa convert`: a Hugging Face folder becomes a run and comes back byte for byte; both are used alike."""

import json
import pathlib
import shutil

import pytest

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "packages/layers/tests/fixtures"


@pytest.fixture(scope="module")
def installed(fresh_installation):
    found = fresh_installation()
    shutil.copytree(FIXTURES / "gpt2", found.folder / "gpt2")
    (found.folder / "gpt2" / "merges.txt").write_text("carried along")
    done = found.run("convert", "from-hf", "gpt2", "run")
    assert done.returncode == 0, done.stderr
    assert "28 tensors, 29,568 parameters; written to run; carried along: merges.txt" in done.stdout
    return found


def test_a_dry_run_lists_every_tensor_and_writes_nothing(installed):
    record = installed.json("convert", "from-hf", "gpt2", "--dry-run")
    assert (record["model_type"], record["written"], record["parameters"]) == ("gpt2", None, 29_568)
    (fused,) = (t for t in record["tensors"] if t["tensor"] == "transformer.h.1.attn.c_attn.weight")
    assert (fused["dtype"], fused["shape"]) == ("F32", [32, 96])
    assert fused["parts"] == [f"stack.layer.attention.{name}.weight[1]" for name in ("query", "key", "value")]


def test_there_and_back_the_files_are_the_same(installed):
    assert installed.run("convert", "to-hf", "run", "back").returncode == 0
    for name in ("model.safetensors", "merges.txt"):
        assert (installed.folder / "back" / name).read_bytes() == (installed.folder / "gpt2" / name).read_bytes()
    before, after = (json.loads((installed.folder / f / "config.json").read_text()) for f in ("gpt2", "back"))
    assert before == after


def test_the_run_and_the_folder_generate_the_same(installed):
    arguments = ("--prompt-ids", "1,2,3", "--max-tokens", "6", "--temperature", "0")
    run, folder = (installed.json("generate", name, *arguments) for name in ("run", "gpt2"))
    assert run["token_ids"] == folder["token_ids"]


def test_a_model_is_modified_where_it_generates(installed):
    arguments = ("gpt2", "--prompt-ids", "1,2,3", "--max-tokens", "2", "--temperature", "0", "--modify")
    assert len(installed.json("generate", *arguments, "weight-only")["token_ids"]) == 2
    refused = [installed.run("generate", *arguments, "no-such"), installed.run("chat", "gpt2", "--modify", "no-such")]
    assert all(done.returncode == 2 and "no-such" in done.stderr for done in refused)


def test_nothing_is_overwritten_and_unknown_sources_are_explained(installed):
    done = installed.run("convert", "from-hf", "gpt2", "run")
    assert (done.returncode, "already exists" in done.stderr) == (2, True)
    done = installed.run("convert", "to-hf", "gpt2", "elsewhere")
    assert (done.returncode, "is not a model of any known kind (run)" in done.stderr) == (2, True)
    assert not (installed.folder / "elsewhere").exists()


def test_help_shows_an_example(installed):
    assert "kanawa convert from-hf" in installed.run("convert", "--help").stdout


@pytest.mark.parametrize("family", ["bert", "t5", "vit"])
def test_encoders_go_there_and_back_too(installed, family):
    shutil.copytree(FIXTURES / family, installed.folder / family)
    there = installed.run("convert", "from-hf", family, f"{family}-run")
    assert there.returncode == 0, there.stderr
    back = installed.run("convert", "to-hf", f"{family}-run", f"{family}-back")
    assert back.returncode == 0, back.stderr
    weights = [(installed.folder / name / "model.safetensors").read_bytes() for name in (family, f"{family}-back")]
    assert weights[0] == weights[1]
    before, after = (json.loads((installed.folder / f / "config.json").read_text()) for f in (family, f"{family}-back"))
    assert before == after
