"""Upcycling: a model whose feed-forwards became mixtures computes what the dense model did."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.module import count_parameters
from kanawa_layers.modifiers.mixture import MoE
from kanawa_layers.moe.upcycle import UpcycleError, upcycle
from kanawa_layers.recipes.llama import llama

TOKENS = jax.random.randint(jax.random.key(1), (2, 7), 0, 40)


def dense_config():
    return llama(num_layers=2, input_dim=16, num_heads=2, num_kv_heads=1, hidden_dim=24, vocab_size=40)


@pytest.fixture(scope="module")
def models():
    dense = dense_config().build()
    sparse = MoE.Config(num_experts=4, top_k=2).build()(dense_config()).build()
    draw = np.random.default_rng(0).standard_normal
    is_spec = lambda s: isinstance(s, kn.ParamSpec)  # noqa: E731
    params = jax.tree.map(lambda s: 0.3 * draw(s.shape, np.float32), kn.param_specs(dense), is_leaf=is_spec)
    return dense, sparse, params


def test_the_upcycled_model_is_the_dense_one(models):
    dense, sparse, params = models
    upcycled = upcycle(sparse, params, jax.random.key(5))
    shapes = jax.tree.map(
        lambda spec: spec.shape, kn.param_specs(sparse), is_leaf=lambda s: isinstance(s, kn.ParamSpec)
    )
    assert jax.tree.map(jnp.shape, upcycled) == shapes
    wanted, _ = jax.jit(kn.functional(dense, "predict"))(params, {}, TOKENS)
    actual, _ = jax.jit(kn.functional(sparse, "predict"))(upcycled, {}, TOKENS)
    np.testing.assert_allclose(actual, wanted, atol=2e-5)
    router = upcycled["stack"]["layer"]["feed_forward"]["router"]["weight"]
    assert np.abs(router[0] - router[1]).min() > 0, "the layers' routers must differ"


def test_what_does_not_fit_is_named(models):
    _, sparse, params = models
    wrong = {**params, "extra": {"weight": jnp.zeros(3)}, "norm": {"scale": jnp.zeros(3)}}
    wrong.pop("head")
    with pytest.raises(UpcycleError) as raised:
        upcycle(sparse, wrong, jax.random.key(5))
    text = str(raised.value)
    assert "head: missing in the dense parameters" in text
    assert "extra: left over" in text
    assert "norm.scale: shape (3,), expected (16,)" in text


def test_active_parameters(models):
    dense, sparse, _ = models
    total, active = count_parameters(sparse)
    feed_forward, router = 3 * 16 * 24, 16 * 4
    dense_total = count_parameters(dense)
    assert dense_total.total == dense_total.active
    assert total == dense_total.total + 2 * (3 * feed_forward + router)
    assert active == dense_total.total + 2 * (feed_forward + router)
