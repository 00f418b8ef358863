"""Attention weights: those with which the output is made, with every mask and cache, computed where asked for."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import CacheView, Sequences
from kanawa.errors import ModuleError
from kanawa.kernels import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa_layers.attention.dot_product import SigmoidDotProduct, SoftmaxDotProduct
from kanawa_layers.recipes.llama import llama_tiny

B, T, H, K, D, V = 2, 6, 4, 2, 8, 5
RNG = np.random.default_rng(0)
Q, KEYS, VALUES = (jnp.asarray(RNG.standard_normal((B, T, *dims)), jnp.float32) for dims in ((H, D), (K, D), (K, V)))
ROWS = Sequences()
POSITIONS = jnp.broadcast_to(jnp.arange(T), (B, T))
SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 2, 2]])


def run(kind, keys, mask, sequences=ROWS, cap=None, emit=("weights",), **operands):
    module = kind.Config(scale=0.3, logit_cap=cap).build()
    call = jax.jit(lambda q: kn.functional(module)({}, {}, q, keys, mask, sequences, POSITIONS, emit=emit, **operands))
    return call(Q)


@pytest.mark.parametrize("kind", [SoftmaxDotProduct, SigmoidDotProduct])
@pytest.mark.parametrize("mask", [FULL, CAUSAL, sliding_window(3), MaskSpec(causal=True, chunk=2)], ids=str)
@pytest.mark.parametrize("options", ["plain", "packed", "capped", "biased", "sinks"])
def test_values_weighed_with_them_are_the_output(kind, mask, options):
    if options == "sinks" and kind is SigmoidDotProduct:
        pytest.skip("sinks belong to a softmax")
    more = {
        "packed": {"sequences": Sequences(segment_ids=SEGMENTS)},
        "capped": {"cap": 2.0},
        "biased": {"bias": jnp.asarray(RNG.standard_normal((1, H, T, T)), jnp.float32)},
        "sinks": {"sinks": jnp.asarray(RNG.standard_normal(H), jnp.float32)},
    }
    out, outputs = run(kind, CacheView(None, KEYS, VALUES), mask, **more.get(options, {}))
    weights = outputs.emitted["weights"]
    assert (weights.shape, weights.dtype) == ((B, H, T, T), jnp.float32)
    values = jnp.repeat(VALUES, H // K, axis=2)
    np.testing.assert_allclose(jnp.einsum("bhts,bshv->bthv", weights, values), out, atol=1e-5)
    if kind is SoftmaxDotProduct and options != "sinks":
        np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)


def test_of_pages_they_are_those_of_the_keys_in_them():
    pages = [x.reshape(B * 3, 2, *x.shape[2:]) for x in (KEYS, VALUES)]
    table = jnp.arange(B * 3, dtype=jnp.int32).reshape(B, 3)
    lengths = jnp.array([6, 6], jnp.int32)
    paged = CacheView({}, *pages, kv_lengths=lengths, page_table=table)
    sequences = Sequences(lengths=jnp.zeros(B, jnp.int32))
    found = run(SoftmaxDotProduct, paged, CAUSAL, sequences)[1].emitted["weights"]
    right = run(SoftmaxDotProduct, CacheView(None, KEYS, VALUES), CAUSAL)[1].emitted["weights"]
    np.testing.assert_allclose(found, right, atol=1e-5)
    ragged = Sequences(lengths=jnp.zeros(B, jnp.int32), query_starts=jnp.array([0, 3, 6], jnp.int32))
    with pytest.raises(ModuleError, match="weights of a ragged row"):
        run(SoftmaxDotProduct, paged, CAUSAL, ragged)


def test_a_model_that_is_not_asked_computes_none():
    model = llama_tiny().build()
    params = jax.eval_shape(lambda: kn.initialize(model, jax.random.key(0)))
    ids = jnp.ones((1, 9), jnp.int32)

    def lowered(emit):
        return jax.jit(lambda p: kn.functional(model, "predict")(p, {}, ids, emit=emit)).lower(params).as_text()

    assert "9x9x" in lowered(("**.weights",)) and len(lowered(("**.weights",))) > len(lowered(()))
