"""QK-clip: largest scores against the dense ones, and after the clip no head's score is above the limit."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import Sequences, adjust_parameters
from kanawa.errors import ConfigError
from kanawa_layers.attention import clipped
from kanawa_layers.attention.clipped import ClippedAttention, QKClip, largest_scores
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.recipes.llama import llama

WIDTH, LENGTH, LIMIT = 16, 8, 6.0


def attention(kv_heads, fused=False, bias=False):
    cfg = ClippedAttention.Config(input_dim=WIDTH, num_heads=4, num_kv_heads=kv_heads, max_score=LIMIT)
    cfg.set(query=Linear.Config(bias=bias), key=Linear.Config(bias=bias), value=Linear.Config(bias=bias))
    return (cfg.set(qkv=Linear.Config(bias=bias)) if fused else cfg).build()


def run(model, params, state, x):
    _, outputs = kn.functional(model)(params, state, x, Sequences(), train=True)
    return outputs.state["max_scores"]


@pytest.mark.parametrize(("kv_heads", "fused", "bias"), [(4, False, True), (2, False, False), (2, True, True)])
def test_after_the_clip_scores_are_at_the_limit_or_as_they_were(kv_heads, fused, bias):
    model = attention(kv_heads, fused, bias)
    params = kn.initialize(model, jax.random.key(0))
    params = jax.tree.map(lambda leaf: leaf + 0.1, params) if bias else params
    # Heads of unlike size: some over the limit, some under it.
    name = "qkv" if fused else "query"
    scale = jnp.asarray([0.05, 3.0]) if fused else jnp.asarray([0.1, 1.0, 3.0, 9.0])
    sized = {"weight": params[name]["weight"] * scale.reshape((1, 2, 1, 1) if fused else (1, 4, 1))}
    params = {**params, name: {**params[name], **sized}}
    x = 2.0 * jax.random.normal(jax.random.key(1), (3, LENGTH, WIDTH))
    state = kn.initial_state(model, jax.random.key(2))
    before = np.asarray(run(model, params, state, x))
    assert (before > LIMIT).any() and (before < LIMIT).any()
    after = np.asarray(run(model, adjust_parameters(model, params, {"max_scores": before}), state, x))
    np.testing.assert_allclose(after, np.minimum(before, LIMIT), rtol=1e-4)


def test_largest_scores_equal_those_of_all_pairs_that_are_seen(monkeypatch):
    monkeypatch.setattr(clipped, "_TOGETHER", 2)
    q, k = (jax.random.normal(jax.random.key(n), (2, LENGTH, heads, 4)) for n, heads in ((0, 4), (1, 2)))
    segments = jnp.asarray([[1, 1, 1, 2, 2, 2, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1]])
    scores = np.einsum("bthd,bshd->bhts", q, np.repeat(k, 2, axis=2))
    own = np.asarray(segments)
    seen = (own[:, :, None] == own[:, None]) & (own[:, :, None] > 0) & np.tril(np.ones((LENGTH, LENGTH), bool))
    expected = np.where(seen[:, None], scores, 0.0).max((0, 2, 3))
    np.testing.assert_allclose(largest_scores(q, k, segments, causal=True), expected, rtol=1e-5)


def test_stacked_layers_are_clipped_each_by_itself():
    cfg = llama(num_layers=2, input_dim=16, num_heads=2, num_kv_heads=2, hidden_dim=24, vocab_size=32)
    cfg = QKClip.Config(max_score=3.0).build()(cfg)
    assert isinstance(cfg.stack.layer.attention, ClippedAttention.Config)
    model = cfg.build()
    params = kn.initialize(model, jax.random.key(0))
    state = kn.initial_state(model, jax.random.key(0))
    recorded = jnp.asarray([[1.0, 12.0], [3.0, 0.0]])
    state["stack"]["layer"]["attention"]["max_scores"] = recorded
    found = adjust_parameters(model, params, state)["stack"]["layer"]["attention"]
    old = params["stack"]["layer"]["attention"]
    for name in ("query", "key"):
        ratio = found[name]["weight"] / old[name]["weight"]
        np.testing.assert_allclose(ratio[0, :, 0], 1.0)
        np.testing.assert_allclose(ratio[0, :, 1], 0.5, rtol=1e-5)
        np.testing.assert_allclose(ratio[1], 1.0)
    np.testing.assert_array_equal(found["value"]["weight"], old["value"]["weight"])


def test_what_undoes_the_clip_is_refused():
    with pytest.raises(ConfigError, match="which query_norm and key_norm undo"):
        ClippedAttention.Config(input_dim=16, num_heads=2, query_norm=RMSNorm.Config()).freeze()
