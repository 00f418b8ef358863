"""T5: cached decoding equals the whole forward pass, padding of the memory isn't seen, pairs are learned."""

import functools

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import EncoderDecoderBatch, Sequences
from kanawa_layers.recipes.t5 import t5

READ = jnp.array([[5, 9, 3, 7, 2], [4, 6, 1, 3, 0]], jnp.int32)
SEGMENTS = jnp.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], jnp.int32)
WRITTEN = jnp.array([[0, 3, 8, 8, 2, 1], [0, 7, 7, 1, 1, 1]], jnp.int32)


def tiny(**changes):
    sizes = {"num_layers": 2, "input_dim": 16, "num_heads": 2, "head_dim": 12, "hidden_dim": 24}
    return t5(**sizes, vocab_size=12, num_buckets=8, max_distance=6, **changes)


@functools.cache
def made(gated):
    module = tiny(gated=gated, tied=not gated).build()
    params = jax.jit(lambda k: kn.initialize(module, k))(jax.random.key(0))
    predict = jax.jit(kn.functional(module, "predict"))
    return module, params, predict(params, {}, READ, WRITTEN, SEGMENTS)[0]


@pytest.mark.parametrize("gated", [False, True], ids=["v1.0", "v1.1"])
def test_cached_decoding_equals_the_whole_pass(gated):
    module, params, whole = made(gated)

    def run(params):
        memory, _ = kn.functional(module, "encode")(params, {}, READ, Sequences(segment_ids=SEGMENTS))
        decode, own = kn.functional(module, "decode"), module.unstacked(params)
        caches = jax.tree.map(
            lambda s: jnp.zeros(s.shape, s.dtype),
            module.cache_spec(2, 8, "float32"),
            is_leaf=lambda x: isinstance(x, kn.ParamSpec),
        )
        given = {"memory": memory, "memory_segment_ids": SEGMENTS}
        logits = []
        for start, end in ((0, 3), (3, 4), (4, 5), (5, 6)):
            sequences = Sequences(lengths=jnp.full((2,), start, jnp.int32), **given)
            (part, caches), _ = decode(own, {}, WRITTEN[:, start:end], sequences, caches)
            logits.append(part)
            given = {}
        return jnp.concatenate(logits, axis=1)

    np.testing.assert_allclose(jax.jit(run)(params), whole, atol=2e-5)


def test_padding_of_the_memory_is_not_seen_and_the_rest_is():
    module, params, whole = made(False)
    predict = jax.jit(kn.functional(module, "predict"))
    padding, _ = predict(params, {}, READ.at[1, 3:].set(11), WRITTEN, SEGMENTS)
    np.testing.assert_allclose(padding, whole, atol=1e-6)
    read, _ = predict(params, {}, READ.at[1, 2].set(11), WRITTEN, SEGMENTS)
    assert float(jnp.abs(read[1] - whole[1]).max()) > 1e-3


def test_pairs_are_learned_and_every_parameter_has_a_gradient():
    module, params, _ = made(False)
    targets = jnp.roll(WRITTEN, -1, axis=1)
    batch = EncoderDecoderBatch(READ, SEGMENTS, None, WRITTEN, None, None, targets, jnp.ones((2, 6)))

    def loss(p):
        return kn.functional(module)(p, {}, batch, key=jax.random.key(1), train=True)[1].total_loss()

    @jax.jit
    def step(p):
        value, grads = jax.value_and_grad(loss)(p)
        return jax.tree.map(lambda x, g: x - 0.1 * g, p, grads), value, grads

    after, first, grads = step(params)
    assert all(float(jnp.abs(g).max()) > 0 for g in flatten_paths(grads).values())
    for _ in range(9):
        after, last, _ = step(after)
    assert float(last) < float(first) - 0.3


def test_the_bias_is_there_once_a_side():
    specs = flatten_paths(kn.param_specs(tiny().build()))
    assert [path for path in specs if "relative_bias" in path] == [
        "encoder.relative_bias.weight",
        "decoder.relative_bias.weight",
    ]
