"""Recipes of recurrent models: parameter counts equal the published ones; what a token costs doesn't grow for ever."""

import kanawa as kn
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa_layers.recipes import mamba2, recurrent_gemma


def count(cfg):
    return sum(spec.size for spec in flatten_paths(kn.param_specs(cfg.build())).values())


@pytest.mark.parametrize(
    ("recipe", "parameters"),
    [
        (mamba2.mamba2_130m, 128_989_632),
        (mamba2.mamba2_370m, 368_346_624),
        (mamba2.mamba2_780m, 780_161_280),
        (mamba2.mamba2_1_3b, 1_343_757_312),
        (mamba2.mamba2_2_7b, 2_702_599_680),
        (recurrent_gemma.recurrent_gemma_2b, 2_682_862_080),
        (recurrent_gemma.recurrent_gemma_9b, 8_579_977_216),
    ],
)
def test_counts_equal_the_published_ones(recipe, parameters):
    assert count(recipe()) == parameters


def test_the_cost_of_a_token_does_not_depend_on_the_context():
    model = mamba2.mamba2_130m().build()
    assert model.flops_per_token(1e3) == model.flops_per_token(1e6)
    matmuls = 2 * (128_989_632 - 24 * (768 + 1536 + 72 + 1792 + 1792 * 4) - 768)
    convolutions, states = 24 * 2 * 4 * 1792, 24 * 4 * 24 * 128 * 64
    assert model.flops_per_token(1.0) == pytest.approx(matmuls + convolutions + states)
    local = recurrent_gemma.recurrent_gemma_2b().build()
    assert local.flops_per_token(2048) == local.flops_per_token(1e6) > local.flops_per_token(100)


def test_caches_of_recurrent_layers_do_not_grow():
    model = recurrent_gemma.recurrent_gemma_2b().build()
    layouts = model.cache_spec(2, 8192, "bfloat16")
    assert len(layouts) == 26
    assert layouts[0] == model.cache_spec(2, 1, "bfloat16")[0]
    assert layouts[0]["state"].shape == (2, 2560) and layouts[0]["state"].dtype == "float32"
    assert layouts[0]["tail"].shape == (2, 3, 2560) and layouts[0]["tail"].dtype == "bfloat16"


def test_axes_split_heads_and_inner_width():
    specs = flatten_paths(kn.param_specs(mamba2.mamba2_130m().build()))
    assert specs["stack.layer.mixer.value.weight"].axes == ("layers", "embed", "mlp")
    assert specs["stack.layer.mixer.output.weight"].axes == ("layers", "mlp", "embed")
    assert specs["stack.layer.mixer.log_rate"].axes == ("layers", "heads")
    undecayed = {path.rpartition(".")[2] for path, spec in specs.items() if spec.weight_decay == 0.0}
    assert undecayed == {"log_rate", "skip", "step_bias", "scale", "bias"}
