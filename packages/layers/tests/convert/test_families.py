"""From our configs to theirs: each catalogued recipe of a family finds its way, and what has none is explained."""

import kanawa as kn
import pytest
from kanawa.contracts import ForeignConfigError
from kanawa.plugins import component
from kanawa_layers.convert.families import differences, foreign_config, known_families, model_config
from kanawa_layers.recipes.llama import llama_tiny

RECIPES = {
    "gpt2": "gpt2",
    "llama2-7b": "llama",
    "llama3.1-8b": "llama",
    "qwen2-7b": "qwen2",
    "qwen3-0.6b": "qwen3",
    "qwen3-30b-a3b": "qwen3_moe",
    "gemma2-27b": "gemma2",
    "gemma3-4b": "gemma3_text",
    "mistral-7b": "mistral",
    "mixtral-8x7b": "mixtral",
    "deepseek-v3": "deepseek_v3",
    "deepseek-v3.2": "deepseek_v32",
    "glm-4.5": "glm4_moe",
    "glm-4.5-air": "glm4_moe",
    "qwen3-next-80b-a3b": "qwen3_next",
    "qwen3.5-9b": "qwen3_5_text",
    "gemma4-e2b": "gemma4_text",
    "gemma4-31b": "gemma4_text",
    "olmo3-7b": "olmo3",
    "smollm3-3b": "smollm3",
    "granite-3.3-8b": "granite",
    "seed-oss-36b": "seed_oss",
    "phi-3-mini": "phi3",
    "phi-4": "phi3",
    "ernie-4.5-0.3b": "ernie4_5",
    "minimax-m2": "minimax_m2",
    "qwen3.5-35b-a3b": "qwen3_5_moe_text",
    "gpt-oss-20b": "gpt_oss",
    "olmo2-7b": "olmo2",
    "llama4-scout": "llama4_text",
    "llama4-maverick": "llama4_text",
}


@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_is_found_without_naming_its_family(name):
    cfg = component("models", name)()
    actual = foreign_config(cfg)
    assert actual["model_type"] == RECIPES[name]
    assert differences(model_config(actual), cfg) == []


def test_every_family_of_this_package_has_a_recipe():
    assert set(RECIPES.values()) <= set(known_families())


def test_what_no_family_can_express_is_explained():
    cfg = llama_tiny()
    cfg.stack.layer.attention.set(logit_cap=20.0)
    with pytest.raises(ForeignConfigError) as error:
        foreign_config(cfg)
    assert "llama: can't express stack.layer.attention.logit_cap: None -> 20.0" in str(error.value)
    with pytest.raises(ForeignConfigError, match="gpt2: "):
        foreign_config(llama_tiny(), "gpt2")


def test_a_fused_projection_keeps_the_names_of_separate_ones():
    from kanawa_layers.basic.linear import Linear
    from kanawa_layers.feedforward.gated import FusedGatedFeedForward

    plain, fused = llama_tiny(), llama_tiny()
    fused.stack.layer.attention.set(qkv=Linear.Config())
    fused.stack.layer.set(feed_forward=FusedGatedFeedForward.Config(hidden_dim=512))
    tables = [kn.foreign.table_of(cfg.build()).tensors for cfg in (plain, fused)]
    assert {n: t.shape for n, t in tables[0].items()} == {n: t.shape for n, t in tables[1].items()}
    assert foreign_config(fused) == foreign_config(plain)


@pytest.mark.parametrize("name", ["qwen2-7b", "gemma2-27b", "mistral-7b"])
def test_fusing_does_not_change_the_family(name):
    cfg = component("models", name)()
    before = foreign_config(cfg)
    for modifier in ("fused-qkv", "fused-gate-up"):
        component("modifiers", modifier).Config().build()(cfg)
    assert "FusedGatedFeedForward" in kn.to_text(cfg)
    assert foreign_config(cfg) == before


def test_a_fused_projection_still_counts_for_what_it_has():
    from kanawa_layers.basic.linear import Linear

    biased = llama_tiny()
    biased.stack.layer.attention.set(qkv=Linear.Config(bias=True))
    assert foreign_config(biased)["model_type"] == "qwen2"


def test_a_modified_model_still_has_names_for_everything():
    from kanawa_layers.modifiers.mixture import MoE

    names = kn.foreign.table_of(MoE.Config(num_experts=2).build()(llama_tiny()).build()).tensors
    assert "model.layers.3.mlp.experts.1.down_proj.weight" in names
    assert "model.layers.3.mlp.gate.weight" in names


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("gpt2", 160 - 12),  # less the masks in the released file
        ("llama2-7b", 291),
        ("llama2-70b", 723),
        ("llama3.2-1b", 146),
        ("qwen2-0.5b", 290),
        ("qwen3-30b-a3b", 18_867),
        ("gemma2-2b", 288),
        ("gemma3-1b", 340),
        ("mistral-7b", 291),
        ("mixtral-8x7b", 995),
    ],
)
def test_as_many_tensors_as_the_released_index_lists(name, tensors):
    table = kn.foreign.table_of(component("models", name)().build())
    assert len(table.tensors) == tensors
