"""Every family: logits equal to those of `transformers`, and the same bytes there and back.

The committed fixtures are small random models that fixtures/make_fixtures.py made. KANAWA_PARITY names another
folder of the same kind: `nox -s parity` makes fresh ones. KANAWA_PARITY_EXPORT names a folder to leave exports
in, for `transformers` to load.
"""

import dataclasses
import os
from pathlib import Path

import jax
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import unflatten_paths
from kanawa.contracts import RepresentsText
from kanawa_layers.convert.families import foreign_config, model_config
from kanawa_layers.convert.folder import open_folder
from kanawa_layers.convert.huggingface import HuggingFaceStore
from kanawa_layers.convert.model_type import model_type_of
from kanawa_layers.diffusion.text_encoder import TextStates

FRESH = os.environ.get("KANAWA_PARITY")
FIXTURES = Path(FRESH or Path(__file__).parent.parent / "fixtures")
FAMILIES = sorted(path.parent.name for path in FIXTURES.glob("*/config.json") if (path.parent / "logits.npz").exists())
#: Whose layers are also computed written out at every change: dense, mixed, recurrent, of two stacks. The night and
#: `nox -s parity` do so with all of them; tests/stack compares stacks of any kind scanned and written out.
WRITTEN_OUT = {"deepseek_v3", "gemma3", "llama", "recurrent_gemma", "t5"}
CASES = [
    pytest.param(
        family, scan, marks=() if scan or family in WRITTEN_OUT or FRESH else pytest.mark.nightly,
        id=f"{family}-{'scanned' if scan else 'unrolled'}",
    )
    for family in FAMILIES for scan in (True, False)
]  # fmt: skip
#: Of fp32 logits; the largest of them are of size 1 to 10.
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=FAMILIES)
def loaded(request):
    folder = FIXTURES / request.param
    return folder, HuggingFaceStore().load(folder)


@pytest.mark.parametrize(("loaded", "scan"), CASES, indirect=["loaded"])
def test_logits_equal_those_of_transformers(loaded, scan):
    folder, model = loaded
    cfg = model.config.clone()
    for _, node in cfg.walk():
        if "scan" in node.fields():
            node.set(scan=scan)
    built = cfg.build()
    with np.load(folder / "logits.npz") as held:
        saved = dict(held)
    params, state = unflatten_paths(model.params), unflatten_paths(model.state)
    options = {"xla_backend_optimization_level": 0}  # compiling is what takes the time here: half of it is enough
    predict = jax.jit(lambda p, s, *inputs: kn.functional(built, "predict")(p, s, *inputs)[0], compiler_options=options)
    if "states" in saved:
        # What a picture is to be of is one argument.
        wish = TextStates(saved.pop("states"), saved.pop("pooled", None))
        expected = saved.pop("logits")
        saved = {**saved, "wish": wish, "logits": expected}
    # Theirs are channels first.
    inputs = (np.moveaxis(a, 1, -1) if name == "pixel_values" else a for name, a in saved.items() if name != "logits")
    logits = np.asarray(predict(params, state, *inputs))
    labels = cfg._target.labels_of(cfg) if issubclass(cfg._target, RepresentsText) else None
    if labels is not None and labels.place != "tokens":
        logits = logits[:, 0 if labels.place == "first" else -1]
    assert np.abs(saved["logits"]).max() > 0.5, "logits too small to tell anything"
    np.testing.assert_allclose(logits, saved["logits"], atol=TOLERANCE, rtol=0)


def test_there_and_back_is_byte_identical(loaded, tmp_path):
    folder, model = loaded
    HuggingFaceStore().save(tmp_path / "again", model)
    before, after = open_folder(folder), open_folder(tmp_path / "again")
    assert set(before.tensors) == set(after.tensors)
    for name, entry in before.tensors.items():
        assert after.tensors[name].dtype == entry.dtype, name
        assert after.tensors[name].shape == entry.shape, name
        assert after.tensors[name].read().tobytes() == entry.read().tobytes(), name
    assert after.config == before.config


def test_config_there_and_back_is_the_same_model(loaded):
    _, model = loaded
    assert model_config(foreign_config(model.config, model_type_of(model.notes["config"]))) == model.config


def test_export_with_a_config_of_our_own_making_has_every_tensor(loaded, tmp_path):
    folder, model = loaded
    target = Path(os.environ.get("KANAWA_PARITY_EXPORT") or tmp_path) / folder.name
    HuggingFaceStore(family=model_type_of(model.notes["config"])).save(target, dataclasses.replace(model, notes={}))
    assert set(open_folder(target).tensors) == set(open_folder(folder).tensors)
