"""BERT: padding and other segments change nothing, the loss is the one of its logits, masked tokens are learned."""

import functools

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import Batch
from kanawa.errors import KanawaError
from kanawa_layers.modifiers.mixture import MoE
from kanawa_layers.modifiers.weights import LoRAModifier
from kanawa_layers.recipes.bert import bert

IDS = jnp.array([[5, 9, 3, 7, 2, 8], [4, 4, 6, 1, 3, 9]], jnp.int32)


def tiny(**parts):
    return bert(num_layers=2, input_dim=16, num_heads=2, vocab_size=12, max_length=8, hidden_dim=24, **parts)


@functools.cache
def made():
    module = tiny().build()
    return module, jax.jit(lambda k: kn.initialize(module, k))(jax.random.key(0))


def test_padding_and_other_segments_are_not_seen():
    module, params = made()
    predict = jax.jit(lambda ids, segments: kn.functional(module, "predict")(params, {}, ids, segments)[0])
    segments = jnp.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 2, 2, 2]], jnp.int32)
    first, other = predict(IDS, segments), predict(IDS.at[:, 4:].set(11), segments)
    np.testing.assert_allclose(first[0, :4], other[0, :4], atol=1e-6)
    np.testing.assert_allclose(first[1, :3], other[1, :3], atol=1e-6)
    assert float(jnp.abs(first[1, 3] - other[1, 3]).max()) > 1e-3, "tokens of one segment see each other, both ways"


def test_loss_is_that_of_the_logits_at_masked_places_and_training_lowers_it():
    module, params = made()
    weights = jnp.array([[0.0, 1, 0, 1, 0, 0], [1, 0, 0, 0, 1, 0]])
    batch = Batch(jnp.where(weights > 0, 10, IDS), IDS, None, None, weights)

    def loss(p):
        return kn.functional(module)(p, {}, batch, key=jax.random.key(1), train=True)[1].total_loss()

    @jax.jit
    def step(p):
        value, grads = jax.value_and_grad(loss)(p)
        return jax.tree.map(lambda x, g: x - 0.3 * g, p, grads), value, grads

    logits, _ = jax.jit(kn.functional(module, "predict"))(params, {}, batch.input_ids)
    nats = -jnp.take_along_axis(jax.nn.log_softmax(logits), IDS[..., None], -1)[..., 0]
    after, first, grads = step(params)
    np.testing.assert_allclose(first, jnp.sum(nats * weights) / jnp.sum(weights), rtol=1e-5)
    assert float(jnp.abs(grads["head"]["bias"]).max()) > 0
    for _ in range(9):
        after, last, _ = step(after)
    assert float(last) < float(first) - 0.5


def test_parts_that_are_not_there_are_asked_for():
    encoder = tiny(pooler=True, head=False).build()
    params = jax.eval_shape(lambda: kn.initialize(encoder, jax.random.key(0)))
    pooled, _ = jax.eval_shape(lambda p: kn.functional(encoder, "pool")(p, {}, IDS), params)
    assert pooled.shape == (2, 16)
    with pytest.raises(KanawaError, match="no head to predict tokens with"):
        jax.eval_shape(lambda p: kn.functional(encoder, "predict")(p, {}, IDS), params)
    module, params = made()
    with pytest.raises(KanawaError, match="has no pooler"):
        kn.functional(module, "pool")(params, {}, IDS)


def test_modifiers_reach_encoders():
    lora = flatten_paths(kn.param_specs(LoRAModifier.Config().build()(tiny()).build()))
    assert "stack.layer.feed_forward.up.adapter.lora_a" in lora
    mixture = flatten_paths(kn.param_specs(MoE.Config(num_experts=4).build()(tiny()).build()))
    assert any(path.startswith("stack.layer.feed_forward.experts") for path in mixture)
