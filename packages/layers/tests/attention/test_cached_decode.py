"""Decoding with a cache gives the logits of the full forward, however the tokens are cut."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import Sequences
from kanawa_layers.recipes.llama import llama, llama_tiny


def small(**changes):
    cfg = llama(num_layers=2, input_dim=32, num_heads=4, num_kv_heads=2, hidden_dim=48, vocab_size=50, tied=True)
    cfg.stack.layer.attention.set(**changes)
    return cfg


@pytest.fixture(scope="module", params=[{}, {"window": 3}, {"logit_cap": 5.0}], ids=str)
def bundle(request):
    model = small(**request.param).build()
    return model, jax.jit(lambda k: kn.initialize(model, k))(jax.random.key(0))


TOKENS = jax.random.randint(jax.random.key(1), (3, 11), 0, 50)


def empty(model, rows, length):
    spec = model.cache_spec(rows, length, "float32")
    is_spec = lambda s: isinstance(s, kn.ParamSpec)  # noqa: E731
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), spec, is_leaf=is_spec)


def full(model, params):
    return jax.jit(kn.functional(model, "predict"))(params, {}, TOKENS)[0]


@pytest.mark.parametrize("cuts", [[11], [4, 7], [5] + [1] * 6], ids=str)
@pytest.mark.parametrize("per_row", [False, True])
def test_cached_equals_full(bundle, cuts, per_row):
    model, params = bundle
    params_apart = model.unstacked(params)
    decode = jax.jit(kn.functional(model, "decode"))
    caches, done, parts = empty(model, 3, 16), 0, []
    for size in cuts:
        lengths = jnp.full((3,), done) if per_row else jnp.asarray(done)
        tokens = TOKENS[:, done : done + size]
        (logits, caches), _ = decode(params_apart, {}, tokens, Sequences(lengths=lengths), caches)
        parts.append(logits)
        done += size
    np.testing.assert_allclose(jnp.concatenate(parts, 1), full(model, params), atol=2e-5)


def test_rows_of_different_length_do_not_disturb_each_other(bundle):
    model, params = bundle
    lengths = jnp.array([2, 5, 8])
    decode = jax.jit(kn.functional(model, "decode"))
    # Prefill all rows as if they were long; what lies past a row's length is rubbish.
    (_, caches), _ = decode(params, {}, TOKENS[:, :8], Sequences(lengths=jnp.zeros((), int)), empty(model, 3, 16))
    following = jnp.take_along_axis(TOKENS, lengths[:, None], 1)
    (logits, _), _ = decode(params, {}, following, Sequences(lengths=lengths), caches)
    wanted = jnp.take_along_axis(full(model, params), lengths[:, None, None], 1)
    np.testing.assert_allclose(logits, wanted, atol=2e-5)


def test_the_last_token_alone_has_the_logits_it_has_among_all():
    model = small().build()
    params = jax.jit(lambda k: kn.initialize(model, k))(jax.random.key(0))
    decode, start = jax.jit(kn.functional(model, "decode")), Sequences(lengths=jnp.zeros((), int))
    whole = full(model, params)
    for last in (jnp.asarray(6), jnp.array([1, 4, 10])):
        (logits, _), _ = decode(params, {}, TOKENS, start, empty(model, 3, 16), last)
        np.testing.assert_allclose(logits[:, 0], whole[jnp.arange(3), last], atol=2e-5)
        assert logits.shape == (3, 1, 50)


def test_packed_rows_equal_separate_ones():
    model = small().build()
    params = jax.jit(lambda k: kn.initialize(model, k))(jax.random.key(0))
    segments = jnp.array([[1] * 4 + [2] * 5 + [0] * 2])
    positions = jnp.array([[0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 0]])
    x = jax.random.normal(jax.random.key(2), (1, 11, 32))
    stack = jax.jit(kn.functional(model.stack))
    run = lambda y, s: stack(params["stack"], {}, y, s)[0][0]  # noqa: E731
    packed = run(x, Sequences(positions, segments))
    np.testing.assert_allclose(packed[:, :4], run(x[:, :4], Sequences()), atol=1e-5)
    np.testing.assert_allclose(packed[:, 4:9], run(x[:, 4:9], Sequences()), atol=1e-5)


def test_the_quickstart_model_is_tied():
    assert "head" not in kn.param_specs(llama_tiny().build())
