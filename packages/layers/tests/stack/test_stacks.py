"""Pattern and chained stacks: scanned equals unrolled equals layer after layer; remat changes nothing; caches too."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import FeedForward, RematPolicy, SequenceMixer, Sequences
from kanawa.errors import ConfigError
from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.basic.dropout import Dropout
from kanawa_layers.feedforward.gated import GatedFeedForward
from kanawa_layers.stack.chained import ChainedStack
from kanawa_layers.stack.pattern import PatternStack
from kanawa_layers.stack.repeated import RepeatedStack
from kanawa_layers.stack.residual_blocks import ParallelBlock, PreNormBlock, Residual

X = jax.random.normal(jax.random.key(0), (2, 5, 8))


class Counting(FeedForward):
    """Adds noise and a count of its calls kept as state; emits, records and adds a loss."""

    class Config(FeedForward.Config):
        hidden_dim: int = 1

    def setup(self):
        self.add_param("scale", (1,), axes=(None,))
        self.add_state("calls", (), axes=())

    def forward(self, x, sequences):
        calls = self.state("calls") + jnp.abs(self.param("scale")[0])
        self.update("calls", calls)
        self.record("size", kn.Mean.of(x))
        self.add_loss("aux", jnp.sum(x), x.size, 0.5)
        self.emit("seen", jnp.mean(x))
        return jnp.tanh(x) * calls


class Previous(SequenceMixer):
    """A cheap attention: each token sees the one `distance` before it, scaled."""

    class Config(SequenceMixer.Config):
        distance: int = 1

    def setup(self):
        self.add_param("scale", (self.config.input_dim,), axes=("embed",))

    def forward(self, x, sequences, cache=None):
        return jnp.roll(x, self.config.distance, axis=1) * self.param("scale")[None, None], cache


class Everything(RematPolicy):
    class Config(RematPolicy.Config):
        pass

    @kn.nowrap
    def policy(self):
        return True


def block(distance=1, feed_forward=None, kind=PreNormBlock):
    return kind.Config(
        attention=Previous.Config(distance=distance),
        feed_forward=feed_forward or GatedFeedForward.Config(hidden_dim=12),
        feed_forward_residual=Residual.Config(dropout=Dropout.Config(rate=0.5)),
    )


def pattern(num_layers=5, **changes):
    blocks = (block(2), block(feed_forward=Counting.Config()))
    return PatternStack.Config(input_dim=8, num_layers=num_layers, pattern=blocks, **changes)


def chain(**changes):
    first = RepeatedStack.Config(num_layers=2, layer=block(kind=ParallelBlock), **changes)
    return ChainedStack.Config(input_dim=8, stacks=(first, pattern(3, **changes).set(input_dim=kn.FROM_PARENT)))


def outcome(cfg, *, unstack=False):
    """Result, gradients and outputs of a training call."""
    stack = cfg.build(name="stack")
    key = jax.random.key(1)
    params, state = kn.initialize(stack, key), kn.initial_state(stack, key)

    def loss(p):
        p = stack.unstacked(p) if unstack else p
        (y, _), out = kn.functional(stack)(p, state, X, Sequences(), key=jax.random.key(2), train=True, emit=("**",))
        return jnp.sum(y * X) + out.total_loss(), (y, out)

    (_, (y, out)), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return y, grads, out.metrics, out.losses, out.state, out.emitted


@pytest.fixture(scope="module")
def scanned():
    return outcome(pattern())


def close(actual, wanted):
    # Gradients of the first layers are near 10, and the two programs round differently on the way.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-4), actual, wanted)


@pytest.mark.parametrize("change", [{"scan": False}, {"remat": Everything.Config()}], ids=["unrolled", "remat"])
def test_unrolled_and_remat_change_nothing(scanned, change):
    close(outcome(pattern(**change), unstack="scan" in change), scanned)


def test_a_chain_scanned_equals_unrolled():
    def result(**changes):
        stack = chain(**changes).build(name="stack")
        key = jax.random.key(1)
        params, state = kn.initialize(stack, key), kn.initial_state(stack, key)
        run = jax.jit(kn.functional(stack), static_argnames="train")
        (y, _), out = run(params, state, X, Sequences(), key=jax.random.key(2), train=True)
        return y, out.metrics, out.losses, out.state

    close(result(scan=False), result())


def test_every_layer_leaves_its_state(scanned):
    stack = pattern().build(name="stack")
    _, _, metrics, losses, state, emitted = scanned
    assert state["pattern[1].feed_forward.calls"].shape == (2,)
    assert emitted["pattern[1].feed_forward.seen"].shape == (2,)
    assert float(losses["pattern[1].feed_forward.aux"].weight) == 2 * X.size
    assert float(metrics["pattern[1].feed_forward.size"].weight) == 2 * X.size
    specs = flatten_paths(kn.param_specs(stack))
    assert specs["pattern[0].attention.scale"].shape[0] == 3
    assert specs["pattern[1].attention.scale"].shape[0] == 2


@pytest.mark.parametrize(("period", "num_layers", "scan"), [(2, 5, True), (3, 4, False)])
def test_a_pattern_is_its_layers_in_turn(period, num_layers, scan):
    blocks = tuple(block(window, kind=k) for window, k in [(1, PreNormBlock), (2, ParallelBlock), (3, PreNormBlock)])
    cfg = PatternStack.Config(input_dim=8, num_layers=num_layers, pattern=blocks[:period], scan=scan)
    stack = cfg.build(name="stack")
    params = jax.jit(lambda key: kn.initialize(stack, key))(jax.random.key(3))
    (actual, _), _ = jax.jit(kn.functional(stack))(params, {}, X, Sequences())
    numbered = {}
    for j in range(period):
        name = f"pattern[{j}]"
        for layer in range(stack.children[name].num_stacked):
            numbered[stack.layer_number(name, layer)] = (name, layer)
    assert sorted(numbered) == list(range(num_layers))

    def one_by_one(x):
        for i in range(num_layers):
            name, layer = numbered[i]
            alone = jax.tree.map(lambda leaf, at=layer: leaf[at], params[name])
            (x, _), _ = kn.functional(stack.children[name])(alone, {}, x, Sequences())
        return x

    np.testing.assert_allclose(actual, jax.jit(one_by_one)(X), rtol=1e-4, atol=1e-5)


def test_caches_follow_the_order_of_layers():
    def attending(window):
        return block().set(attention=GroupedQueryAttention.Config(num_heads=2, window=window))

    first = RepeatedStack.Config(num_layers=1, layer=attending(3))
    then = PatternStack.Config(num_layers=3, pattern=(attending(2), attending(None)))
    cfg = ChainedStack.Config(input_dim=8, stacks=(first, then))
    stack = cfg.build(name="stack")
    params = stack.unstacked(kn.initialize(stack, jax.random.key(4)))
    spec = stack.cache_spec(2, 8, "float32")
    assert len(spec) == 4
    caches = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), spec, is_leaf=lambda s: isinstance(s, kn.ParamSpec))
    run = jax.jit(kn.functional(stack))
    (full, _), _ = run(params, {}, X, Sequences())
    parts = []
    for start, stop in [(0, 3), (3, 4), (4, 5)]:
        (y, caches), _ = run(params, {}, X[:, start:stop], Sequences(lengths=jnp.asarray(start)), caches)
        parts.append(y)
    np.testing.assert_allclose(jnp.concatenate(parts, 1), full, rtol=1e-4, atol=1e-5)


def test_layer_numbers_of_a_chain():
    stack = chain().build(name="stack")
    assert [stack.first_layer(name) for name in ("stacks[0]", "stacks[1]")] == [0, 2]


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (lambda: pattern(1), r"num_layers \(1\) is less than the pattern's length \(2\)"),
        (lambda: PatternStack.Config(input_dim=8, num_layers=1, pattern=()), "pattern is empty"),
        (lambda: chain().set(num_layers=4), "num_layers is 4, but the stacks have 5 layers together"),
        (lambda: ChainedStack.Config(input_dim=8, stacks=()), "stacks is empty"),
    ],
)
def test_bad_counts(cfg, message):
    with pytest.raises(ConfigError, match=message):
        cfg().build(name="stack")
