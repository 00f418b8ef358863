"""Encoders, encoder-decoders and vision transformers have their published sizes."""

import kanawa as kn
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa_layers.recipes import bert, t5, vit

PUBLISHED = {
    bert.bert_base: 109_514_298,
    bert.bert_large: 335_174_458,
    t5.t5_small: 60_506_624,
    t5.t5_base: 222_903_552,
    t5.t5_large: 737_668_096,
    t5.t5_v1_1_base: 247_577_856,
    vit.vit_b_16: 86_567_656,
    vit.vit_l_16: 304_326_632,
}


def count(cfg):
    return sum(spec.size for spec in flatten_paths(kn.param_specs(cfg.build())).values())


@pytest.mark.parametrize("recipe", PUBLISHED, ids=lambda recipe: recipe.__name__)
def test_a_recipe_has_its_published_size(recipe):
    assert count(recipe()) == PUBLISHED[recipe]


def test_bert_without_a_head_and_with_its_pooler_has_its_published_size():
    encoder = {"pooler": True, "head": False}
    assert count(bert.bert(num_layers=12, input_dim=768, num_heads=12, **encoder)) == 109_482_240
    assert count(bert.bert(num_layers=24, input_dim=1024, num_heads=16, **encoder)) == 335_141_888
