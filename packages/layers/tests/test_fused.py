"""Layers with weights of one input joined compute what they did apart, and what can't be joined stays as it is."""

import jax
import numpy as np
import pytest
from kanawa.composition.fused import fuse_layers, fuse_params
from kanawa.module import functional, initialize, param_specs
from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.basic.linear import Linear
from kanawa_layers.feedforward.gated import GatedFeedForward
from kanawa_layers.recipes.llama import llama_tiny
from kanawa_layers.tune.lora import LoRA


def _wide(cfg):
    attention = cfg.stack.layer.attention
    for name in ("query", "key", "value"):
        getattr(attention, name).set(bias=True)


def _adapted(cfg):
    cfg.stack.layer.attention.query.set(adapter=LoRA.Config())
    cfg.stack.layer.feed_forward.up.set(adapter=LoRA.Config())


class OwnAttention(GroupedQueryAttention):
    """Does with its projections what it likes."""

    class Config(GroupedQueryAttention.Config):
        pass


class OwnFeedForward(GatedFeedForward):
    """Isn't what the fused layer computes."""

    class Config(GatedFeedForward.Config):
        pass

    def forward(self, x, sequences):
        return self.down(self.up(x) - self.gate(x))


def _subclassed(cfg):
    layer = cfg.stack.layer
    heads = {name: getattr(layer.attention, name) for name in ("num_heads", "num_kv_heads", "head_dim")}
    hidden = layer.feed_forward.hidden_dim
    layer.set(attention=OwnAttention.Config(**heads), feed_forward=OwnFeedForward.Config(hidden_dim=hidden))


def _fused(cfg):
    cfg.stack.layer.attention.set(qkv=Linear.Config())
    cfg.stack.layer.feed_forward.gate.set(bias=True)


CHANGES = [(None, True), (_wide, True), (_adapted, False), (_fused, False), (_subclassed, False)]


@pytest.mark.parametrize(("change", "joins"), CHANGES)
def test_a_fused_model_computes_the_same(change, joins):
    cfg = llama_tiny()
    if change is not None:
        change(cfg)
    apart = cfg.build()
    rewritten = apart.config.clone()
    fuse_layers(rewritten)
    together = rewritten.build()
    params = initialize(apart, jax.random.key(0, impl="threefry2x32"))
    # Biases are zero at first, in which any order would do.
    params = jax.tree.map(
        lambda x: np.asarray(x) + 0.1 * np.cos(np.arange(x.size, dtype=x.dtype)).reshape(x.shape), params
    )
    made = fuse_params(apart, params)
    specs = param_specs(together)
    assert jax.tree.map(np.shape, made) == jax.tree.map(lambda spec: spec.shape, specs)
    names = {
        name
        for layer in (made["stack"]["layer"]["attention"], made["stack"]["layer"]["feed_forward"])
        for name in layer
    }
    if joins:
        assert {"qkv", "gate_up"} <= names and not {"query", "key", "value", "gate", "up"} & names
    else:
        assert together.config == apart.config and made.keys() == params.keys()
    ids = np.arange(12, dtype=np.int32).reshape(2, 6) + 3
    expected, _ = functional(apart, "predict")(params, {}, ids)
    actual, _ = functional(together, "predict")(made, {}, ids)
    np.testing.assert_allclose(actual, expected, atol=1e-4 * np.abs(expected).max())
