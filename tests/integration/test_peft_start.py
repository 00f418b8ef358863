"""Training goes on from a folder of `peft`, and a run's adapter leaves as one."""

import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import StoredModel
from kanawa.errors import KanawaError
from kanawa_layers.convert.huggingface import HuggingFaceStore
from kanawa_layers.convert.peft import PeftStore
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.runs.model_store import RunStore

SETTINGS = {"steps": 3, "batch_size": 4, "data.sequence_length": 16, "evaluation.every_steps": 100}


def trained(folder, run, *, modify="lora:rank=4,alpha=8", **options):
    kn.train(str(folder), run=str(run), modify=[modify], set=SETTINGS, data="random-tokens:vocab_size=40",
             on="cpu", progress=False, **options)  # fmt: skip
    return [event for event in read_events(run / "events.jsonl") if event["event"] == "step"]


def test_an_adapter_leaves_for_peft_and_training_goes_on_from_there(tmp_path, capsys):
    import jax
    from kanawa.cli.main import main

    cfg = llama(num_layers=1, input_dim=32, num_heads=2, num_kv_heads=1, hidden_dim=48, vocab_size=40)
    built = cfg.build()
    params = {p: np.asarray(x) for p, x in flatten_paths(kn.initialize(built, jax.random.key(0))).items()}
    HuggingFaceStore().save(tmp_path / "model", StoredModel(cfg, params))
    first = trained(tmp_path / "model", tmp_path / "first")
    assert main(["convert", "to-peft", str(tmp_path / "first"), str(tmp_path / "adapter")]) == 0
    assert "14 tensors of the adapter" in capsys.readouterr().out
    assert PeftStore().load(tmp_path / "adapter", cfg).rank == 4
    # The second run begins with what the first one ended with: the same rows cost what its model makes of them.
    second = trained(tmp_path / "model", tmp_path / "second", modify="lora:rank=6", init_from=tmp_path / "adapter")
    merged = RunStore().load(tmp_path / "first")
    HuggingFaceStore().save(tmp_path / "merged", merged)
    whole = trained(tmp_path / "merged", tmp_path / "whole", modify="lora:rank=6")
    assert second[0]["loss"] == pytest.approx(whole[0]["loss"], rel=1e-5)
    # A fresh adapter changes nothing, of whatever rank: the first run began with the model's own loss.
    assert abs(second[0]["loss"] - first[0]["loss"]) > 1e-5
    with pytest.raises(KanawaError, match="has rank 2, and the stored adapter rank 4; set --modify lora:rank=4"):
        trained(tmp_path / "model", tmp_path / "low", modify="lora:rank=2", init_from=tmp_path / "adapter")
