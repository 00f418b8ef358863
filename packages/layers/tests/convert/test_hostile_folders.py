"""Folders that mean harm, or are damaged: one clear error each, and neither time nor memory spent."""

import json
import shutil
from pathlib import Path

import pytest
from kanawa_layers.convert.errors import ConvertError
from kanawa_layers.convert.huggingface import HuggingFaceStore

LLAMA = Path(__file__).parents[1] / "fixtures" / "llama"


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(LLAMA, tmp_path / "model"))


@pytest.mark.parametrize("count", [10**9, 10**12, 1e12])
def test_more_layers_than_tensors(folder, count):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": count}))
    with pytest.raises(ConvertError, match=r"num_hidden_layers is 1e\+(09|12), and there are \d+ tensors"):
        HuggingFaceStore().outline(folder)


def test_a_config_that_never_ends(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/dev/zero")
    with pytest.raises(ConvertError, match="is more than 16,777,216 bytes, which no model's config is"):
        HuggingFaceStore().outline(folder)


def test_a_config_nested_beyond_reading(folder):
    (folder / "config.json").write_text('{"a": ' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(ConvertError, match="nests lists and objects deeper than can be read"):
        HuggingFaceStore().outline(folder)
