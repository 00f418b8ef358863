"""Every attention over every cache gives what the whole row gives, for rows of different lengths cut anywhere."""

import functools

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import Sequences
from kanawa.errors import ConfigError, ModuleError
from kanawa_layers.attention.paged_cache import PagedCache
from kanawa_layers.attention.quantised_cache import QuantisedCache

from .kinds import ATTENTIONS, CACHES, NO_RING, WIDTH

ROWS, LENGTH = 3, 16
X = jnp.asarray(np.random.default_rng(0).standard_normal((ROWS, LENGTH, WIDTH)), jnp.float32)
#: Of the first 6 tokens given, so many are real; the rest is padding.
PROMPTS = jnp.array([6, 3, 1])
#: These programs run once: compiling them with care would take most of the time.
QUICKLY = {"xla_backend_optimization_level": 0}


@functools.cache
def parameters(kind):
    """Returns parameters, none of them zero or one, and what they make of whole rows."""
    layer = ATTENTIONS[kind].build(name="attention")
    is_spec = lambda spec: isinstance(spec, kn.ParamSpec)  # noqa: E731
    draw = np.random.default_rng(1).standard_normal
    params = jax.tree.map(
        lambda spec: jnp.asarray(0.3 * draw(spec.shape), jnp.float32), kn.param_specs(layer), is_leaf=is_spec
    )
    return params, jax.jit(kn.functional(layer), compiler_options=QUICKLY)(params, {}, X, Sequences())[0][0]


def empty(layer, rows, length):
    return {name: jnp.zeros(spec.shape, spec.dtype) for name, spec in layer.cache_spec(rows, length, "float32").items()}


def rows_from(lengths, size):
    return jnp.take_along_axis(X, (lengths[:, None] + jnp.arange(size)[None])[..., None], axis=1)


def decoded(layer, params):
    """Returns outputs of a padded prompt of 6, and of a chunk of 3 and then 3 single tokens after each row's own."""
    step = kn.functional(layer)
    cache = empty(layer, ROWS, LENGTH)
    real = (jnp.arange(6)[None] < PROMPTS[:, None]).astype(jnp.int32)
    start = Sequences(lengths=jnp.zeros((), jnp.int32), segment_ids=real)
    (prompt, cache), _ = step(params, {}, X[:, :6], start, cache)
    (chunk, cache), _ = step(params, {}, rows_from(PROMPTS, 3), Sequences(lengths=PROMPTS), cache)

    def one(carry, _):
        lengths, cache = carry
        (y, cache), _ = step(params, {}, rows_from(lengths, 1), Sequences(lengths=lengths), cache)
        return (lengths + 1, cache), y[:, 0]

    _, tokens = jax.lax.scan(one, (PROMPTS + 3, cache), None, length=3)
    return prompt, jnp.concatenate([chunk, jnp.moveaxis(tokens, 0, 1)], axis=1)


#: What is run every day: every attention once at least, every cache where masks, biases or the layout of keys could go
#: wrong in it. All the rest is run by night.
DAILY = {
    "dense": {"plain", "window", "sinks", "tuned", "latent-low-rank"},
    "ring": {"window", "chunked", "both", "relative", "latent"},
    "paged": {"plain", "either", "alibi", "sigmoid"},
    "quantised": {"latent"},
    "quantised-ring": {"window"},
    "quantised-paged": {"plain"},
}
COMBINATIONS = [
    pytest.param(kind, cache, marks=() if kind in DAILY[cache] else pytest.mark.nightly)
    for kind in ATTENTIONS
    for cache in CACHES
    if not (kind in NO_RING and "ring" in cache)
]


@pytest.mark.parametrize(("kind", "cache"), COMBINATIONS)
def test_cached_equals_whole_rows(kind, cache):
    params, whole = parameters(kind)
    layer = ATTENTIONS[kind].clone().set(cache=CACHES[cache]).build(name="attention")
    prompt, rest = jax.jit(lambda p: decoded(layer, p), compiler_options=QUICKLY)(params)
    tolerance = 0.05 * jnp.abs(whole).max() if "quantised" in cache else 2e-5
    for row, length in enumerate(map(int, PROMPTS)):
        np.testing.assert_allclose(prompt[row, :length], whole[row, :length], atol=tolerance)
        np.testing.assert_allclose(rest[row], whole[row, length : length + 6], atol=tolerance)


def test_pages_may_lie_anywhere_and_rows_be_ragged():
    """Three sequences share a pool through shuffled pages; one flat row then holds the next tokens of all three."""
    params, whole = parameters("plain")
    cfg = ATTENTIONS["plain"].clone().set(cache=PagedCache.Config(page_size=4, num_pages=20))
    layer = cfg.build(name="attention")
    step = jax.jit(kn.functional(layer), compiler_options=QUICKLY)
    table = jnp.asarray(np.random.default_rng(2).permutation(20)[:12].reshape(ROWS, 4), jnp.int32)
    real = (jnp.arange(6)[None] < PROMPTS[:, None]).astype(jnp.int32)
    start = Sequences(lengths=jnp.zeros((ROWS,), jnp.int32), segment_ids=real, page_table=table)
    (_, pool), _ = step(params, {}, X[:, :6], start, empty(layer, ROWS, LENGTH))
    counts = [3, 1, 4]
    flat = jnp.concatenate(
        [X[row, n : n + count] for row, (n, count) in enumerate(zip([6, 3, 1], counts, strict=True))]
    )[None]
    starts = jnp.asarray(np.cumsum([0, *counts]), jnp.int32)
    ragged = Sequences(lengths=PROMPTS, page_table=table, query_starts=starts)
    (actual, _), _ = step(params, {}, flat, ragged, pool)
    wanted = [whole[row, n : n + count] for row, (n, count) in enumerate(zip([6, 3, 1], counts, strict=True))]
    np.testing.assert_allclose(actual[0], jnp.concatenate(wanted), atol=2e-5)


@pytest.mark.parametrize("cache", ["dense", "ring"])
def test_slots_pick_rows_of_a_larger_cache(cache):
    params, whole = parameters("window")
    layer = ATTENTIONS["window"].clone().set(cache=CACHES[cache]).build(name="attention")
    step = jax.jit(kn.functional(layer), compiler_options=QUICKLY)
    slots = jnp.array([4, 0, 2])
    start = Sequences(lengths=jnp.zeros((), jnp.int32), slots=slots)
    before = {name: array + 7.0 for name, array in empty(layer, 5, LENGTH).items()}
    (first, after), _ = step(params, {}, X[:, :5], start, before)
    (second, _), _ = step(params, {}, X[:, 5:6], Sequences(lengths=jnp.full((ROWS,), 5), slots=slots), after)
    np.testing.assert_allclose(jnp.concatenate([first, second], 1), whole[:, :6], atol=2e-5)
    assert all(np.array_equal(after[name][i], before[name][i]) for name in after for i in (1, 3))


def test_a_ring_keeps_what_the_window_needs_and_no_more():
    layer = ATTENTIONS["window"].clone().set(cache=CACHES["ring"]).build(name="attention")
    assert {spec.shape for spec in layer.cache_spec(2, 1000, "float32").values()} == {(2, 3, 2, 8)}


def test_int8_codes_take_a_quarter_and_a_scale_each():
    layer = ATTENTIONS["plain"].clone().set(cache=CACHES["quantised"]).build(name="attention")
    actual = {name: (spec.shape, spec.dtype) for name, spec in layer.cache_spec(2, 10, "bfloat16").items()}
    codes, scales = ((2, 10, 2, 8), "int8"), ((2, 10, 2, 1), "float32")
    assert actual == {"codes_keys": codes, "codes_values": codes, "scales_keys": scales, "scales_values": scales}


@pytest.mark.parametrize(("num_pages", "tokens"), [(7, 4), (3, 6)])
def test_pages_that_do_not_go_round(num_pages, tokens):
    params, _ = parameters("plain")
    cfg = ATTENTIONS["plain"].clone().set(cache=PagedCache.Config(page_size=4, num_pages=num_pages))
    layer = cfg.build(name="attention")
    start = Sequences(lengths=jnp.zeros((ROWS,), jnp.int32))
    said = f"{num_pages} pages of 4 tokens for 3 rows of {tokens} tokens, and no page table.*set num_pages to"
    with pytest.raises(ModuleError, match=said):
        kn.functional(layer)(params, {}, X[:, :tokens], start, empty(layer, ROWS, LENGTH))


def test_inner_caches_of_one_kind():
    cfg = QuantisedCache.Config(codes=PagedCache.Config())
    with pytest.raises(ConfigError, match="codes and scales are caches of different kinds"):
        cfg.freeze()


def test_pages_of_bits_take_floats_of_16_bits_only():
    sizes = {"num_kv_heads": 2, "key_dim": 4, "value_dim": 4}
    cache = PagedCache.Config(page_size=4, bits=True, **sizes).build()
    assert {spec.dtype for spec in cache.spec(2, 8, "bfloat16").values()} == {"uint16"}
    assert {spec.dtype for spec in cache.spec(2, 8, "int8").values()} == {"int8"}
    state = {name: jnp.zeros((4, 4, 2, 4), jnp.uint16) for name in ("keys", "values")}
    token, lengths = jnp.ones((2, 1, 2, 4)), jnp.zeros(2, jnp.int32)
    view = cache.extend(state, token.astype(jnp.bfloat16), token.astype(jnp.bfloat16), Sequences(lengths=lengths))
    assert np.array_equal(jax.lax.bitcast_convert_type(view.k[0, 0], jnp.bfloat16), token[0, 0].astype(jnp.bfloat16))
    with pytest.raises(ModuleError, match="stores 16-bit floats, but got float32; leave `bits` unset"):
        cache.extend(state, token, token, Sequences(lengths=lengths))
