"""Recipes: parameter counts equal the published ones, and the tree has the shapes and axes it should."""

import jax
import kanawa as kn
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa_layers.recipes.llama import llama2_7b, llama2_13b, llama2_70b, llama_1b, llama_tiny


@pytest.mark.parametrize(
    ("recipe", "count"),
    [(llama2_7b, 6_738_415_616), (llama2_13b, 13_015_864_320), (llama2_70b, 68_976_648_192)],
)
def test_counts_equal_the_published_ones(recipe, count):
    specs = flatten_paths(kn.param_specs(recipe().build()))
    assert sum(spec.size for spec in specs.values()) == count


def test_paths_shapes_and_axes():
    specs = flatten_paths(kn.param_specs(llama2_70b().build()))
    query = specs["stack.layer.attention.query.weight"]
    assert query.shape == (80, 8192, 64, 128)
    assert query.axes == ("layers", "embed", "heads", "head_dim")
    assert query.fans() == (8192, 64 * 128)
    assert specs["stack.layer.attention_norm.scale"].weight_decay == 0.0


def test_forward_flops_follow_the_parameters():
    model = llama2_7b().build()
    matmuls = 2 * (6_738_415_616 - 32_000 * 4096 - 65 * 4096)
    scores = 32 * 4 * 4096 * 2048
    assert model.flops_per_token(2048) == pytest.approx(matmuls + scores)


def test_one_billion():
    count = sum(s.size for s in flatten_paths(kn.param_specs(llama_1b().build())).values())
    assert 1.0e9 < count < 1.2e9


def test_initial_loss_is_that_of_a_random_guess_with_logits_of_size_one():
    from kanawa.contracts import Batch

    model = llama_tiny().build()
    params = kn.initialize(model, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (2, 33), 0, 2048)
    _, outputs = kn.functional(model)(params, {}, Batch.of_tokens(tokens))
    assert float(outputs.total_loss()) == pytest.approx(7.62 + 0.5, abs=0.3)
