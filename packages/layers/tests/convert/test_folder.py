"""Folders: shards there and back, what is carried along, and what is refused before anything is written."""

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from kanawa.contracts import ForeignConfigError
from kanawa.errors import ConfigError
from kanawa.guarded_read import UnreadableFileError
from kanawa_layers.convert.errors import (
    ConvertError,
    PickleRefusedError,
    SafetensorsError,
    TensorMismatchError,
    UnknownFamilyError,
)
from kanawa_layers.convert.folder import open_folder
from kanawa_layers.convert.huggingface import HuggingFaceStore
from kanawa_layers.convert.safetensors_file import DTYPES, read_header, write_file

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture
def llama(tmp_path):
    return Path(shutil.copytree(FIXTURES / "llama", tmp_path / "llama"))


def _rewrite(folder: Path, change) -> None:
    """Writes a folder's tensors anew after `change` has edited the dictionary of arrays."""
    file = folder / "model.safetensors"
    arrays = {name: np.array(entry.read()) for name, entry in read_header(file).items()}
    change(arrays)
    names = {dtype: name for name, dtype in DTYPES.items()}
    write_file(file, {n: (names[a.dtype], a.shape) for n, a in arrays.items()}, arrays.__getitem__)


def test_missing_extra_renamed_and_misshapen_tensors_are_all_in_one_report(llama, tmp_path):
    def change(arrays):
        del arrays["model.norm.weight"]
        arrays["model.layers.0.self_attn.query.weight"] = arrays.pop("model.layers.0.self_attn.q_proj.weight")
        arrays["surplus"] = np.zeros(3, np.float32)
        arrays["model.layers.1.mlp.up_proj.weight"] = arrays["model.layers.1.mlp.up_proj.weight"].T.copy()
        arrays["lm_head.weight"] = arrays["lm_head.weight"].astype(np.int8)

    _rewrite(llama, change)
    with pytest.raises(TensorMismatchError) as error:
        HuggingFaceStore().load(llama)
    text, problems = str(error.value), error.value.problems
    assert "5 tensors don't fit; nothing was written" in text
    assert len(problems) == 5
    assert "model.norm.weight: missing, expected [32]" in problems
    assert any("q_proj.weight: missing; model.layers.0.self_attn.query.weight" in p for p in problems)
    assert "surplus: left over (F32 [3])" in problems
    assert "model.layers.1.mlp.up_proj.weight: has shape [32, 40], expected [40, 32]; it is transposed" in problems
    assert any("lm_head.weight: has dtype I8" in p and "dequantise" in p for p in problems)


def test_a_tied_tensor_may_repeat_but_not_differ(tmp_path):
    folder = Path(shutil.copytree(FIXTURES / "llama3", tmp_path / "tied"))
    _rewrite(folder, lambda arrays: arrays.update({"lm_head.weight": arrays["model.embed_tokens.weight"].copy()}))
    HuggingFaceStore().load(folder)
    _rewrite(folder, lambda arrays: arrays.update({"lm_head.weight": arrays["lm_head.weight"] + 1}))
    with pytest.raises(TensorMismatchError, match="tied to model.embed_tokens.weight"):
        HuggingFaceStore().load(folder)


def test_frequency_tables_are_ignored_and_gpt2s_prefix_is_optional(tmp_path):
    folder = Path(shutil.copytree(FIXTURES / "gpt2", tmp_path / "gpt2"))
    before = HuggingFaceStore().load(folder).params

    def change(arrays):
        for name in list(arrays):
            arrays[name.removeprefix("transformer.")] = arrays.pop(name)
        arrays["h.0.attn.bias"] = np.ones((1, 1, 64, 64), np.float32)

    _rewrite(folder, change)
    after = HuggingFaceStore().load(folder).params
    for path, array in before.items():
        np.testing.assert_array_equal(array, after[path], err_msg=path)


def test_shards_hold_every_tensor_once_and_read_back(llama, tmp_path):
    (llama / "tokenizer.json").write_text("{}")
    model = HuggingFaceStore().load(llama)
    HuggingFaceStore(shard_bytes=20_000).save(tmp_path / "out", model)
    shards = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(shards) > 2
    assert all(sum(e.stop - e.start for e in read_header(s).values()) <= 20_000 for s in shards)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    again = HuggingFaceStore().load(tmp_path / "out")
    for path, array in model.params.items():
        assert array.tobytes() == again.params[path].tobytes(), path
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(4 * a.size for a in model.params.values())


def test_bfloat16_stays_bfloat16_bit_for_bit(llama, tmp_path):
    def change(arrays):
        for name in arrays:
            if "norm" not in name:
                arrays[name] = arrays[name].astype(ml_dtypes.bfloat16)

    _rewrite(llama, change)
    model = HuggingFaceStore().load(llama)
    assert model.params["embedding.weight"].dtype == np.float32
    HuggingFaceStore().save(tmp_path / "out", model)
    before, after = open_folder(llama).tensors, open_folder(tmp_path / "out").tensors
    assert {n: e.dtype for n, e in before.items()} == {n: e.dtype for n, e in after.items()}
    assert all(entry.read().tobytes() == after[name].read().tobytes() for name, entry in before.items())


def test_a_failed_write_leaves_nothing(llama, tmp_path):
    model = HuggingFaceStore().load(llama)
    del model.params["norm.scale"]
    with pytest.raises(KeyError):
        HuggingFaceStore().save(tmp_path / "out", model)
    assert [path.name for path in tmp_path.iterdir()] == ["llama"]
    with pytest.raises(ConvertError, match="already exists"):
        HuggingFaceStore().save(llama, model)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_a_pickle_is_refused(llama, name):
    (llama / "model.safetensors").rename(llama / name)
    with pytest.raises(PickleRefusedError, match="can run any code"):
        HuggingFaceStore().load(llama)


def test_a_corrupt_header_is_a_typed_error(llama):
    file = llama / "model.safetensors"
    file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:])
    with pytest.raises(SafetensorsError, match="bytes long, but the file has"):
        HuggingFaceStore().load(llama)


def test_folders_that_cannot_be_read(llama, tmp_path):
    with pytest.raises(ConvertError, match="is not a directory"):
        HuggingFaceStore().load(tmp_path / "nowhere")
    index = llama / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(ConvertError, match="names files that aren't there: gone.safetensors"):
        HuggingFaceStore().load(llama)
    index.write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}))
    with pytest.raises(ConvertError, match="points outside of its folder"):
        HuggingFaceStore().load(llama)
    index.write_text("[]")
    with pytest.raises(ConvertError, match="not a valid index"):
        HuggingFaceStore().load(llama)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"model_type": "lama"}, UnknownFamilyError, "did you mean 'llama'.*known: .*gpt2"),
        ({"model_type": None}, ConvertError, "no model_type"),
        ({"hidden_act": "snake"}, ForeignConfigError, "unknown activation 'snake'"),
        ({"hidden_size": ...}, ForeignConfigError, "lacks 'hidden_size'"),
        ({"hidden_size": "wide"}, ConfigError, "input_dim.*expected int"),
        ({"rope_parameters": {"rope_theta": "high"}}, ForeignConfigError, "has an invalid value"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, ForeignConfigError, "quantised .mxfp4.*dequantise"),
        (
            {"rope_parameters": {"rope_type": "novel", "rope_theta": 1.0}},
            ForeignConfigError,
            "unknown rope_type 'novel'; known: default",
        ),
    ],
)
def test_configs_without_a_counterpart(llama, change, error, says):
    config = {**json.loads((llama / "config.json").read_text()), **change}
    (llama / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
    with pytest.raises(error, match=says):
        HuggingFaceStore().load(llama)


def test_what_is_carried_lies_in_the_folder_or_in_the_hubs_cache(llama, tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (llama / "tokenizer_config.json").symlink_to(secret)
    with pytest.raises(UnreadableFileError, match=r"_config\.json is a link out of its folder, to .*secret\.json"):
        open_folder(llama)
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (llama / "tokenizer_config.json").unlink()
    (llama / "tokenizer.json").write_text("{}")
    for file in llama.iterdir():
        shutil.copyfile(file, blobs / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    outline = HuggingFaceStore().outline(snapshot)
    assert list(outline.files) == ["tokenizer.json"]
    assert not outline.params
    assert outline.config == HuggingFaceStore().load(snapshot).config
