"""What blocks emit for inspection: there when asked for, and not in the program otherwise."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import Batch, Sequences
from kanawa_layers.attention.cross import CrossAttention
from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.feedforward.gated import GatedFeedForward
from kanawa_layers.recipes.llama import llama_tiny
from kanawa_layers.stack.chained import ChainedStack
from kanawa_layers.stack.pattern import PatternStack
from kanawa_layers.stack.repeated import RepeatedStack
from kanawa_layers.stack.residual_blocks import (
    CrossPreNormBlock,
    MixerBlock,
    OutputNormBlock,
    ParallelBlock,
    PostNormBlock,
    PreNormBlock,
    SandwichNormBlock,
)

X = jax.random.normal(jax.random.key(0), (2, 3, 8))
ATTENTION = GroupedQueryAttention.Config(num_heads=2, head_dim=4)
CROSS = CrossAttention.Config(num_heads=2)
PARTS = {"attention": ATTENTION, "feed_forward": GatedFeedForward.Config(hidden_dim=8)}
TWO = ("attention.dot_product.weights", "attention_output", "feed_forward_output", "residual_stream")
CROSSED = ("cross_attention.dot_product.weights", "cross_attention_output")
BLOCKS = [
    (PreNormBlock.Config(**PARTS), TWO),
    (PostNormBlock.Config(**PARTS), TWO),
    (OutputNormBlock.Config(**PARTS), TWO),
    (SandwichNormBlock.Config(**PARTS), TWO),
    (ParallelBlock.Config(**PARTS), TWO),
    (MixerBlock.Config(mixer=ATTENTION), ("mixer.dot_product.weights", "mixer_output", "residual_stream")),
    (CrossPreNormBlock.Config(**PARTS, cross_attention=CROSS), (*TWO, *CROSSED)),
]  # fmt: skip


def run(cfg, emit):
    module = cfg.set(input_dim=8).build(name="root")
    params = kn.initialize(module, jax.random.key(1))
    return kn.functional(module)(params, {}, X, Sequences(memory=X), emit=emit)


@pytest.mark.parametrize(("cfg", "names"), BLOCKS, ids=lambda part: getattr(type(part), "__qualname__", None))
def test_every_block_emits_its_stream_and_what_its_branches_give(cfg, names):
    (y, _), outputs = run(cfg.clone(), ("**",))
    assert set(outputs.emitted) == set(names)
    np.testing.assert_array_equal(outputs.emitted["residual_stream"], y)
    assert not run(cfg.clone(), ())[1].emitted


def stacks():
    block = BLOCKS[0][0]
    repeated = RepeatedStack.Config(num_layers=3, layer=block)
    pattern = PatternStack.Config(num_layers=3, pattern=(block, BLOCKS[4][0]))
    return {"repeated": repeated, "pattern": pattern, "chained": ChainedStack.Config(stacks=(repeated, pattern))}


@pytest.mark.parametrize("kind", ["repeated", "pattern", "chained"])
def test_stacks_keep_each_layers_stream_in_layer_order(kind):
    (y, _), outputs = run(stacks()[kind], ("**.residual_stream",))
    lengths = {path: value.shape[0] for path, value in outputs.emitted.items()}
    layers = {"repeated": [3], "pattern": [2, 1], "chained": [3, 2, 1]}[kind]
    assert sorted(lengths.values(), reverse=True) == sorted(layers, reverse=True), lengths
    assert any(np.array_equal(streams[-1], y) for streams in outputs.emitted.values())


@pytest.mark.parametrize("name", TWO[1:])
@pytest.mark.parametrize("kind", ["repeated", "pattern", "chained"])
def test_a_changed_activation_reaches_what_follows_and_nothing_before(kind, name):
    module = stacks()[kind].set(input_dim=8).build(name="root")
    params = kn.initialize(module, jax.random.key(1))
    pattern = f"**.{name}"

    def call(change):
        (y, _), outputs = kn.functional(module)(params, {}, X, Sequences(), emit=pattern, intervene=change)
        return y, outputs.emitted

    plain, before = call(None)
    same, _ = call({pattern: lambda x, layer: x})
    np.testing.assert_array_equal(same, plain)
    # The first layer's value in each stack, and all that comes after it there.
    other, after = call({pattern: lambda x, layer: jnp.where(layer == 0, x + 1.0, x)})
    assert not np.allclose(other, plain)
    first = next(iter(before))
    np.testing.assert_allclose(after[first][0], before[first][0] + 1.0, rtol=1e-6)
    assert all(not np.allclose(after[path][1:], before[path][1:]) for path in before if before[path].shape[0] > 1)


def lowered(emit):
    model, batch = llama_tiny().build(), Batch.of_tokens(jnp.ones((2, 9), jnp.int32))
    params = jax.eval_shape(lambda: kn.initialize(model, jax.random.key(0)))

    def loss(params, batch):
        _, outputs = kn.functional(model)(params, {}, batch, train=True, key=jax.random.key(0), emit=emit)
        return outputs.total_loss(), outputs.emitted

    return jax.jit(jax.grad(loss, has_aux=True)).lower(params, batch).as_text()


def test_a_model_that_is_not_asked_has_the_program_of_one_that_cannot_emit(monkeypatch):
    asked, unasked = lowered(("**.attention_output",)), lowered(())
    monkeypatch.setattr(kn.Module, "emit", lambda self, name, value: value)
    assert lowered(()) == unasked
    assert len(asked) > len(unasked)
