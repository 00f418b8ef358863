"""Reward models as folders that `transformers` reads as LlamaForSequenceClassification, and back."""

import json

import jax
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import ForeignConfigError, StoredModel
from kanawa_layers.convert.families import model_config
from kanawa_layers.convert.huggingface import HuggingFaceStore
from kanawa_layers.convert.safetensors_file import read_header
from kanawa_layers.models.reward import RewardHead
from kanawa_layers.modifiers.preferences import RewardModelLoss
from kanawa_layers.recipes.llama import llama


@pytest.mark.parametrize("tied", [False, True])
def test_a_reward_model_makes_the_round_trip(tmp_path, tied):
    cfg = llama(num_layers=2, input_dim=16, num_heads=2, num_kv_heads=1, hidden_dim=24, vocab_size=13, tied=tied)
    cfg = RewardModelLoss.Config().build()(cfg)
    built = cfg.build()
    params = kn.initialize(built, jax.random.key(0))
    params["head"]["kernel"] = jax.random.normal(jax.random.key(1), (16, 1))
    flat = {path: np.asarray(x) for path, x in flatten_paths(params).items()}
    HuggingFaceStore().save(tmp_path / "reward", StoredModel(cfg, flat))
    config = json.loads((tmp_path / "reward/config.json").read_text())
    assert config["architectures"] == ["LlamaForSequenceClassification"]
    assert len(config["id2label"]) == 1
    tensors = read_header(tmp_path / "reward/model.safetensors")
    assert list(tensors["score.weight"].shape) == [1, 16]
    assert "lm_head.weight" not in tensors
    back = HuggingFaceStore().load(tmp_path / "reward")
    assert isinstance(back.config.head, RewardHead.Config)
    assert back.params.keys() == flat.keys()
    for path, array in flat.items():
        np.testing.assert_array_equal(back.params[path], array)


def test_a_classifier_of_several_labels_a_text_is_refused():
    config = {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}
    with pytest.raises(
        ForeignConfigError, match="problem_type is 'multi_label_classification', expected 'single_label"
    ):
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
        model_config({**config, **sizes, "vocab_size": 13, "problem_type": "multi_label_classification"})
