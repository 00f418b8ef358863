"""Runs as a model store: what is saved is loaded, generated with, and trained from; what doesn't fit is listed."""

import json

import jax
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.composition.experiment import compose
from kanawa.contracts import StoredModel
from kanawa.errors import UsageError
from kanawa_runtime.runs.imported import place, stored_model
from kanawa_runtime.runs.model_store import RunStore
from kanawa_runtime.runs.open_run import open_run
from kanawa_runtime.train.loop import Loop
from tiny_lm import TinyLM, tiny


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    (folder / "merges.txt").write_text("a b")
    cfg = TinyLM.Config()
    params = flatten_paths(kn.initialize(cfg.build(), jax.random.key(7)))
    params = {path: np.asarray(array) for path, array in params.items()}
    notes = {"dtypes": {"usual": "BF16"}}
    model = StoredModel(cfg, params, {}, {"merges.txt": folder / "merges.txt"}, notes)
    RunStore().save(folder / "run", model)
    return folder / "run", model


def test_what_is_saved_is_loaded(stored):
    directory, model = stored
    assert RunStore().holds(directory)
    found = RunStore().load(directory)
    assert found.config == model.config
    assert found.notes == model.notes
    assert found.files["merges.txt"].read_text() == "a b"
    for path, array in model.params.items():
        np.testing.assert_array_equal(found.params[path], array)


def test_it_opens_as_a_run_at_step_0(stored):
    assert open_run(stored[0]).step == 0
    with pytest.raises(UsageError, match="already exists"):
        RunStore().save(*stored)


def test_training_starts_from_it(stored, tmp_path):
    directory, _ = stored
    losses = {}
    for name, initial in (("fresh", None), ("from", directory)):
        Loop(compose(tiny()), tmp_path / name, steps=1, initial=initial).execute()
        events = [json.loads(line) for line in (tmp_path / name / "events.jsonl").read_text().splitlines()]
        (losses[name],) = (event["loss"] for event in events if event["event"] == "step")
        noted = [event["path"] for event in events if event["event"] == "initialised_from"]
        assert noted == ([] if initial is None else [str(directory)])
    assert losses["fresh"] != losses["from"]


def test_arrays_that_do_not_fit_are_all_listed():
    wanted = {"a": jax.ShapeDtypeStruct((2,), np.float32), "b": jax.ShapeDtypeStruct((3,), np.float32)}
    with pytest.raises(UsageError) as error:
        place({"b": np.zeros(4), "c": np.zeros(1)}, wanted)
    assert str(error.value).splitlines()[1:] == [
        "  a: missing",
        "  c: left over",
        "  b: has shape [4], expected [3]",
    ]


def test_a_folder_nobody_knows(tmp_path):
    with pytest.raises(UsageError, match=r"holds no model of a known kind \(.*run"):
        stored_model(tmp_path)
