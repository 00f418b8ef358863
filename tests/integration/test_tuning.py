"""A Hugging Face model, tuned by adapters alone, and written back as the plain model it stands for."""

from pathlib import Path

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.composition.modifiers import apply_modifier
from kanawa.contracts import Batch, StoredModel
from kanawa_layers.convert.huggingface import HuggingFaceStore
from kanawa_runtime.runs.imported import fitted, imported_experiment
from kanawa_runtime.train.trainer import Trainer

FIXTURE = Path(__file__).parents[2] / "packages/layers/tests/fixtures/llama"
TOKENS = jnp.array([[(5 * t + r) % 64 for t in range(9)] for r in range(4)], jnp.int32)


def predict(module, params):
    return np.asarray(jax.jit(lambda p: kn.functional(module, "predict")(p, {}, TOKENS)[0])(params))


@pytest.mark.parametrize("name", ["lora", "qlora"])
def test_tuning_a_hugging_face_model_trains_and_stores_state_of_adapters_only(name, tmp_path):
    stored = HuggingFaceStore().load(FIXTURE)
    cfg = apply_modifier(imported_experiment(stored.config), name, {"rank": "4"}, "test")
    cfg.learner.schedule.set(peak=0.05)
    trainer = Trainer(cfg.freeze())
    params = unflatten_paths({p: jnp.asarray(a) for p, a in fitted(stored, trainer.model).items()})
    adapters = {path for path in flatten_paths(params) if ".adapter." in path}
    assert adapters
    assert set(trainer.rule.specs) == adapters

    state = trainer.init()._replace(params=params)
    moments = {path.rpartition("/")[2] for path in state.opt if "/mu/" in path}
    assert moments == adapters
    batch, step, losses = Batch.of_tokens(TOKENS), jax.jit(trainer.train_step), []
    for _ in range(10):
        state, report = step(state, batch)
        losses.append(report.read()["loss"])
    assert losses[-1] < losses[0]
    before, after = flatten_paths(params), flatten_paths(state.params)
    changed = {path for path in before if not np.array_equal(before[path], after[path])}
    assert changed == adapters

    tuned = StoredModel(cfg.model, flatten_paths(state.params), {}, stored.files, stored.notes)
    HuggingFaceStore().save(tmp_path / "merged", tuned)
    merged = HuggingFaceStore().load(tmp_path / "merged")
    assert merged.config == stored.config
    found = predict(merged.config.build(), unflatten_paths(merged.params))
    np.testing.assert_allclose(found, predict(trainer.model, state.params), atol=1e-4)
    original = predict(stored.config.build(), unflatten_paths(stored.params))
    assert np.abs(found - original).max() > 0.1
