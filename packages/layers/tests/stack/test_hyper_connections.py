"""Hyper-connections: doubly stochastic mixing, a plain network where nothing is learned, every kind of block."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.errors import ConfigError
from kanawa.testing.layer import LayerConformance
from kanawa.testing.mixer import MixerConformance
from kanawa.testing.modifier import ModifierConformance
from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.feedforward.gated import GatedFeedForward
from kanawa_layers.recipes.llama import llama
from kanawa_layers.stack.hyper_connections import (
    HyperConnection,
    HyperConnections,
    HyperSandwichNormBlock,
    HyperStack,
    doubly_stochastic,
)
from kanawa_layers.stack.residual_blocks import (
    OutputNormBlock,
    ParallelBlock,
    PreNormBlock,
    SandwichNormBlock,
)

PARTS = {
    "attention": GroupedQueryAttention.Config(num_heads=2),
    "feed_forward": GatedFeedForward.Config(hidden_dim=24),
}


def tiny(block=PreNormBlock):
    cfg = llama(num_layers=1, input_dim=16, num_heads=2, num_kv_heads=2, hidden_dim=24, vocab_size=20)
    cfg.stack.set(layer=block.Config(**PARTS))
    return cfg


class TestHyperConnection(LayerConformance):
    unsupported = {"bfloat16": "its weights are fp32"}

    def config(self):
        return HyperConnection.Config(input_dim=8, streams=2, initial_scale=1.0, iterations=3)

    def inputs(self, key):
        return (jax.random.normal(key, (2, 5, 16)),)

    def call(self, params, *inputs, train=False):
        module, _, state = self.build()
        read, write, mix = kn.functional(module)(params, state, *inputs, train=train)[0]
        return jnp.concatenate([read, write, mix.reshape(*mix.shape[:2], -1)], -1)


class TestHyperBlock(MixerConformance):
    def config(self):
        connection = HyperConnection.Config(iterations=2)
        both = {"attention_connection": connection, "feed_forward_connection": connection}
        return HyperSandwichNormBlock.Config(input_dim=32, streams=2, **PARTS, **both)


class TestHyperConnections(ModifierConformance):
    touches = ("stack", "stack.**")

    def config(self):
        return tiny()

    def modifier(self):
        return HyperConnections.Config(streams=3).build()


def test_rows_and_columns_sum_to_one():
    mix = doubly_stochastic(4.0 * jax.random.normal(jax.random.key(0), (2, 3, 4, 4)), 20)
    np.testing.assert_allclose(mix.sum(-2), 1.0, atol=1e-6)
    np.testing.assert_allclose(mix.sum(-1), 1.0, atol=0.02)
    assert (mix > 0).all()


@pytest.mark.parametrize(
    "block",
    [PreNormBlock, *(pytest.param(kind, marks=pytest.mark.nightly) for kind in (OutputNormBlock, SandwichNormBlock))],
)
def test_without_a_scale_it_is_the_plain_network(block):
    tokens = jnp.arange(12).reshape(2, 6)
    plain = tiny(block).build()
    wide_cfg = HyperConnections.Config(streams=3).build()(tiny(block))
    assert isinstance(wide_cfg.stack, HyperStack.Config)
    wide = wide_cfg.build()
    params = jax.jit(lambda key: kn.initialize(wide, key))(jax.random.key(0))
    layer = dict(params["stack"]["stack"]["layer"])
    same = {name: layer[name] for name in layer if not name.endswith("connection")}
    for name in ("attention_connection", "feed_forward_connection"):
        layer[name] = {**layer[name], "scale": jnp.zeros_like(layer[name]["scale"])}
    plain_params = {**params, "stack": {"layer": same}}
    params = {**params, "stack": {"stack": {"layer": layer}}}
    expected, found = (
        jax.jit(lambda p, m=m: kn.functional(m, "predict")(p, {}, tokens)[0])(p)
        for m, p in ((plain, plain_params), (wide, params))
    )
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_other_blocks_are_refused():
    with pytest.raises(ConfigError, match="ParallelBlock.Config isn't supported; expected one of"):
        HyperConnections.Config().build()(tiny(ParallelBlock))
