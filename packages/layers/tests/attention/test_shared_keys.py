"""Keys and values shared across layers: the same however a stack is run, less to cache, and never unawares."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import RematPolicy, Sequences, Stack
from kanawa.errors import ConfigError, ModuleError
from kanawa.testing.mixer import MixerConformance
from kanawa_layers.attention.cross import CrossAttention
from kanawa_layers.attention.key_sharing import OfferKeys, TakeKeys
from kanawa_layers.attention.masks import Bidirectional
from kanawa_layers.attention.paged_cache import PagedCache
from kanawa_layers.attention.quantised_cache import QuantisedCache
from kanawa_layers.attention.ring_cache import RingCache
from kanawa_layers.feedforward.plain import PlainFeedForward
from kanawa_layers.modifiers.shared_kv import SharedKV
from kanawa_layers.positions.biases import NoPositions
from kanawa_layers.recipes.mamba2 import mamba2_tiny
from kanawa_layers.stack.chained import ChainedStack
from kanawa_layers.stack.pattern import PatternStack
from kanawa_layers.stack.repeated import RepeatedStack
from kanawa_layers.stack.residual_blocks import PreNormBlock

from .kinds import WIDTH, grouped, latent

TAKE, OFFER = TakeKeys.Config(), OfferKeys.Config()


def block(attention):
    return PreNormBlock.Config(
        attention=attention.set(input_dim=kn.FROM_PARENT), feed_forward=PlainFeedForward.Config(hidden_dim=8)
    )


class Holder(kn.Config):
    stack: Stack.Config = kn.REQUIRED


def shared(stack, **options):
    return SharedKV.Config(**options).build()(Holder(stack=stack)).stack.set(input_dim=WIDTH)


def repeated(num_layers, attention=None, **options):
    return RepeatedStack.Config(num_layers=num_layers, layer=block(attention or grouped()), **options)


LOCAL_GLOBAL = (block(grouped(window=2, cache=RingCache.Config())), block(grouped()))
STACKS = {
    "every-second": lambda: shared(repeated(3)),
    "every-third-unrolled": lambda: shared(repeated(4, scan=False), every=3),
    "local-and-global": lambda: shared(PatternStack.Config(num_layers=6, pattern=LOCAL_GLOBAL)),
    "last-three": lambda: shared(repeated(6), last=3),
    "last-of-a-pattern": lambda: shared(PatternStack.Config(num_layers=7, pattern=LOCAL_GLOBAL), last=4),
    "latent": lambda: shared(repeated(4, latent())),
    "a-chain": lambda: shared(ChainedStack.Config(stacks=(repeated(2), repeated(3, latent())))),
    "int8": lambda: shared(repeated(2, grouped(cache=QuantisedCache.Config()))),
    "paged": lambda: shared(repeated(2, grouped(cache=PagedCache.Config(page_size=4)))),
}


def daily(*kinds):
    """Returns every kind of stack; all but these wait for the night, since each is a program to compile."""
    return [pytest.param(kind, marks=() if kind in kinds else pytest.mark.nightly) for kind in STACKS]


@pytest.mark.parametrize("kind", daily("every-second"))
class TestSharedKeys(MixerConformance):
    """The kit's checks of layers and of what mixes a sequence, once for each kind of stack."""

    @pytest.fixture(autouse=True)
    def _kind(self, kind):
        self.kind = kind
        type(self).tolerance = 2e-2 if kind == "int8" else 5e-5
        return kind

    def build(self):
        return built(self.kind)

    def config(self):
        return STACKS[self.kind]()


@functools.cache
def built(kind):
    module = STACKS[kind]().build(name="layer")
    return module, jax.jit(lambda key: kn.initialize(module, key))(jax.random.key(0)), {}


X = jax.random.normal(jax.random.key(3), (2, 6, WIDTH))


@pytest.mark.parametrize("kind", daily("last-three", "latent"))
def test_decoding_with_a_cache_equals_the_whole_row(kind):
    module, params, _ = built(kind)
    run = jax.jit(kn.functional(module))
    (whole, _), _ = run(params, {}, X, Sequences())
    spec = module.cache_spec(2, 8, "float32")
    caches = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), spec, is_leaf=lambda s: isinstance(s, kn.ParamSpec))
    parts, done, apart = [], 0, module.unstacked(params)
    for size in (4, 1, 1):
        (y, caches), _ = run(apart, {}, X[:, done : done + size], Sequences(lengths=jnp.asarray(done)), caches)
        parts.append(y)
        done += size
    np.testing.assert_allclose(jnp.concatenate(parts, 1), whole, atol=3e-2 if kind == "int8" else 5e-5)


class Everything(RematPolicy):
    @kn.nowrap
    def policy(self):
        return True


@pytest.mark.parametrize("kind", ["every-second", pytest.param("last-of-a-pattern", marks=pytest.mark.nightly)])
def test_scanned_written_out_and_recomputed_agree(kind):
    def result(**changes):
        cfg = STACKS[kind]()
        for part in getattr(cfg, "stacks", (cfg,)):
            part.set(**changes)
        module = cfg.build(name="layer")
        loss = lambda p: jnp.sum(jnp.sin(kn.functional(module)(p, {}, X, Sequences())[0][0]))  # noqa: E731
        return jax.jit(jax.value_and_grad(loss))(built(kind)[1])

    wanted, grads = result()
    for changes in ({"scan": False}, {"remat": Everything.Config()}):
        value, others = result(**changes)
        np.testing.assert_allclose(value, wanted, rtol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4, rtol=1e-3), grads, others)


def cache_bytes(cfg):
    spec = cfg.build(name="layer").cache_spec(2, 32, "float32")
    leaves = jax.tree.leaves(spec, is_leaf=lambda s: isinstance(s, kn.ParamSpec))
    return sum(math.prod(s.shape) * np.dtype(s.dtype).itemsize for s in leaves)


def test_what_is_cached_shrinks_with_the_layers_that_have_keys():
    whole = cache_bytes(repeated(6).set(input_dim=WIDTH))
    assert cache_bytes(shared(repeated(6))) == whole // 2
    assert cache_bytes(shared(repeated(6), every=3)) == whole // 3
    assert cache_bytes(shared(repeated(6), last=4)) == whole // 3
    specs = kn.param_specs(shared(repeated(6)).build(name="layer"))
    assert {"key", "value"} & set(specs["pattern[1]"]["attention"]) == set()
    assert set(specs["pattern[0]"]["attention"]) == {"query", "key", "value", "output"}


class Two(kn.Module):
    """Two attentions, the second over what the first offers."""

    class Config(kn.Module.Config):
        first: kn.Module.Config = kn.REQUIRED
        second: kn.Module.Config = kn.REQUIRED

    def setup(self):
        self.add_child("first", self.config.first)
        self.add_child("second", self.config.second)

    def forward(self, x, z):
        self.first(x, Sequences())
        return self.second(z, Sequences())[0]


def two(first, second):
    module = Two.Config(first=first, second=second).build(name="two")
    params = kn.initialize(module, jax.random.key(0))
    return params, lambda z: kn.functional(module)(params, {}, X, z)[0]


def test_taking_keys_is_attending_to_the_other_layers_input():
    plain = {"mask": Bidirectional.Config(), "positions": NoPositions.Config()}
    params, run = two(grouped(**plain, sharing=OFFER), grouped(**plain, sharing=TAKE))
    cross = CrossAttention.Config(input_dim=WIDTH, num_heads=4, num_kv_heads=2, head_dim=8).build(name="cross")
    weights = {**params["second"], "key": params["first"]["key"], "value": params["first"]["value"]}
    z = jax.random.normal(jax.random.key(5), X.shape)
    (wanted, _), _ = kn.functional(cross)(weights, {}, z, Sequences(memory=X))
    np.testing.assert_allclose(run(z), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (grouped(), grouped(sharing=TAKE), "two.second: no module that ran before offers 'keys'"),
        (grouped(sharing=OfferKeys.Config(name="key")), grouped(sharing=TAKE), "did you mean 'key'"),
        (
            grouped(sharing=OFFER).set(head_dim=4),
            grouped(sharing=TAKE),
            "2 heads of width 4, .* 4 query heads of width 8",
        ),
        (grouped(sharing=OFFER, window=3), grouped(sharing=TAKE), "sees all keys, .* from a layer that caches 3"),
        (grouped(sharing=OFFER, window=3), grouped(sharing=TAKE, window=4), "sees 4 keys back, .* that caches 3"),
        (latent(sharing=OFFER), grouped(sharing=TAKE), "1 heads of width 10, .* of width 8"),
    ],
)
def test_layers_that_do_not_fit_are_named(first, second, message):
    with pytest.raises(ModuleError, match=message):
        two(first, second)[1](X)


class Elsewhere(Stack):
    """A stranger's stack."""

    class Config(Stack.Config):
        layer: kn.Module.Config = kn.REQUIRED


@pytest.mark.parametrize(
    ("stack", "options", "message"),
    [
        (lambda: mamba2_tiny().stack, {}, "can share keys and values: RepeatedStack.Config has Mamba2.Config"),
        (lambda: Elsewhere.Config(num_layers=2, layer=block(grouped())), {}, "Elsewhere.Config is neither a Repeat"),
        (lambda: repeated(2), {"every": 3}, "of 2 layers has too few for every=3: it needs 3 of each of the 1 kinds"),
        (lambda: repeated(2), {"last": 2}, "of 2 layers has too few for last=2: 1, one of each kind"),
        (lambda: repeated(2), {"every": 1}, "every is 1, expected at least 2"),
    ],
)  # fmt: skip
def test_the_modifier_refuses_with_a_reason(stack, options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        shared(stack(), **options)


def test_keys_and_values_are_shared_by_layers_of_the_same_place_in_the_pattern():
    names = [b.attention.sharing.name for b in STACKS["local-and-global"]().pattern]
    assert names[:2] == names[2:]
    assert names[0] != names[1]
    first, givers, takers = STACKS["last-of-a-pattern"]().stacks
    assert (first.num_layers, givers.num_layers, takers.num_layers) == (1, 2, 4)
    assert [b.attention.window for b in (*givers.pattern, *takers.pattern)] == [None, 2, None, 2]
