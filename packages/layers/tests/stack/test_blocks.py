"""Each block against its formula, with a toy attention and feed-forward whose effect NumPy can repeat."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import FeedForward, SequenceMixer, Sequences
from kanawa.plugins import ProgramTraits
from kanawa_layers.basic.dropout import Dropout, StochasticDepth
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.feedforward.plain import Bottleneck
from kanawa_layers.stack.residual_blocks import (
    MixerBlock,
    OutputNormBlock,
    ParallelBlock,
    PostNormBlock,
    PreNormBlock,
    Residual,
    SandwichNormBlock,
)

X = jax.random.normal(jax.random.key(0), (2, 3, 4))


class Previous(SequenceMixer):
    """Each token becomes three times the one before it."""

    class Config(SequenceMixer.Config):
        pass

    def forward(self, x, sequences, cache=None):
        return 3.0 * jnp.roll(x, 1, axis=1), cache


class Cube(FeedForward):
    class Config(FeedForward.Config):
        hidden_dim: int = 1

    def forward(self, x, sequences):
        return x**3


NORMS = {"attention_norm": 2.0, "feed_forward_norm": 0.5, "attention_output_norm": 3.0, "feed_forward_output_norm": 0.7}


def a(x):
    return 3.0 * np.roll(x, 1, axis=1)


def f(x):
    return x**3


def n(x, name):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * NORMS[name]


def pre(x):
    x = x + a(n(x, "attention_norm"))
    return x + f(n(x, "feed_forward_norm"))


def post(x):
    x = n(x + a(x), "attention_norm")
    return n(x + f(x), "feed_forward_norm")


def output(x):
    x = x + n(a(x), "attention_norm")
    return x + n(f(x), "feed_forward_norm")


def sandwich(x):
    x = x + n(a(n(x, "attention_norm")), "attention_output_norm")
    return x + n(f(n(x, "feed_forward_norm")), "feed_forward_output_norm")


def parallel(x):
    h = n(x, "attention_norm")
    return x + a(h) + f(h)


def parallel_of_two_norms(x):
    return x + a(n(x, "attention_norm")) + f(n(x, "feed_forward_norm"))


TWO = {"feed_forward_norm": RMSNorm.Config()}


@pytest.mark.parametrize(
    ("kind", "changes", "formula"),
    [
        (PreNormBlock, {}, pre),
        (PostNormBlock, TWO, post),
        (OutputNormBlock, {}, output),
        (SandwichNormBlock, {}, sandwich),
        (ParallelBlock, {}, parallel),
        (ParallelBlock, TWO, parallel_of_two_norms),
    ],
)
def test_block_is_its_formula(kind, changes, formula):
    cfg = kind.Config(
        input_dim=4, attention=Previous.Config(), feed_forward=Cube.Config(), attention_norm=RMSNorm.Config(), **changes
    )
    block = cfg.build(name="block")
    params = {name: {"scale": jnp.full(4, NORMS[name])} for name in kn.param_specs(block)}
    (actual, _), _ = kn.functional(block)(params, {}, X, Sequences())
    np.testing.assert_allclose(actual, formula(np.asarray(X, np.float64)), rtol=2e-4, atol=2e-4)


def test_mixer_block_has_one_branch():
    block = MixerBlock.Config(input_dim=4, mixer=Previous.Config()).build(name="block")
    (actual, _), _ = kn.functional(block)({"norm": {"scale": jnp.full(4, 2.0)}}, {}, X, Sequences())
    x = np.asarray(X, np.float64)
    np.testing.assert_allclose(actual, x + a(n(x, "attention_norm")), rtol=1e-4, atol=1e-5)


def joined(residual, *, train=False, x=X):
    module = residual.set(input_dim=4).build(name="residual")
    params = kn.initialize(module, jax.random.key(1))
    return kn.functional(module)(params, {}, x, jnp.ones_like(x), key=jax.random.key(2), train=train)[0]


def test_scales_multiply_the_branch_only():
    np.testing.assert_allclose(joined(Residual.Config(scale=0.25)), X + 0.25)
    np.testing.assert_allclose(joined(Residual.Config(scale=0.5, layer_scale=0.1)), X + 0.05, rtol=1e-6)


def test_a_fresh_bottleneck_is_nearly_the_identity():
    actual = joined(Residual.Config(adapter=Bottleneck.Config(width=2)))
    np.testing.assert_allclose(actual, X + 1.0, atol=0.05)
    assert np.abs(actual - (X + 1.0)).max() > 0


def test_stochastic_depth_drops_rows_whole_and_keeps_the_mean():
    x = jnp.zeros((400, 2, 4))
    actual = np.asarray(joined(Residual.Config(stochastic_depth=StochasticDepth.Config(rate=0.25)), train=True, x=x))
    assert (actual == actual[:, :1, :1]).all()
    np.testing.assert_allclose(np.unique(actual), [0.0, 4 / 3], rtol=1e-6)
    assert actual.mean() == pytest.approx(1.0, abs=0.1)
    np.testing.assert_array_equal(joined(Residual.Config(stochastic_depth=StochasticDepth.Config()), x=x), 1.0)


def test_dropout_follows_the_key():
    drop = Residual.Config(dropout=Dropout.Config(rate=0.5))
    cfg = PreNormBlock.Config(
        input_dim=4,
        attention=Previous.Config(),
        feed_forward=Cube.Config(),
        attention_residual=drop,
        feed_forward_residual=drop,
    )
    block = cfg.build(name="block")
    params = kn.initialize(block, jax.random.key(0))
    run = kn.functional(block)
    actual = [run(params, {}, X, Sequences(), key=jax.random.key(k), train=True)[0][0] for k in (0, 0, 1)]
    np.testing.assert_array_equal(actual[0], actual[1])
    assert np.abs(actual[0] - actual[2]).max() > 0


def test_the_stream_keeps_its_layout_where_training_materialises():
    """Two joins, forward and backward; the gradient is the same, and a call without gradients is left alone."""
    cfg = PreNormBlock.Config(input_dim=4, attention=Previous.Config(), feed_forward=Cube.Config())
    block = cfg.build(name="block")
    params = kn.initialize(block, jax.random.key(0))

    def loss(x):
        return jnp.sum(kn.functional(block)(params, {}, x, Sequences())[0][0])

    plain = jax.grad(loss)(X)
    with kn.use_plan(kn.ExecutionPlan(traits=ProgramTraits(row_major_stream=True))):
        gradient = jax.grad(loss)
        np.testing.assert_array_equal(gradient(X), plain)
        assert str(jax.make_jaxpr(gradient)(X)).count("layout_constraint") == 4
        assert "layout_constraint" not in str(jax.make_jaxpr(loss)(X))
