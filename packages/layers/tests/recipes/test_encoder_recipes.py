"""Encoders, encoder-decoders, vision transformers and Whisper have their published sizes."""

import kanawa as kn
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.plugins import component
from kanawa_layers.recipes import bert

PUBLISHED = {
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-v1.1-base": 247_577_856,
    "vit-b-16": 86_567_656,
    "vit-l-16": 304_326_632,
    "clip-vit-b-32": 151_277_313,
    "siglip-b-16": 203_155_970,
    # Without the encoder's positions, which are stored and not trained.
    "whisper-tiny": 37_760_640 - 1500 * 384,
    "whisper-base": 72_593_920 - 1500 * 512,
    "whisper-small": 241_734_912 - 1500 * 768,
    "whisper-medium": 763_857_920 - 1500 * 1024,
    "whisper-large-v3": 1_543_490_560 - 1500 * 1280,
}


def count(cfg):
    return sum(spec.size for spec in flatten_paths(kn.param_specs(cfg.build())).values())


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_has_its_published_size(name):
    assert count(component("models", name)()) == PUBLISHED[name]


def test_bert_without_a_head_and_with_its_pooler_has_its_published_size():
    encoder = {"pooler": True, "head": False}
    assert count(bert.bert(num_layers=12, input_dim=768, num_heads=12, **encoder)) == 109_482_240
    assert count(bert.bert(num_layers=24, input_dim=1024, num_heads=16, **encoder)) == 335_141_888
