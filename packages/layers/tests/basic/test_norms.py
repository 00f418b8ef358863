"""Norms and poolings against NumPy, with padding; running statistics against a loop."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.errors import ConfigError
from kanawa_layers.basic.norms import BatchNorm, GroupNorm, L2Norm, LayerNorm, RMSNorm
from kanawa_layers.basic.pooling import FirstPooling, LastPooling, MaxPooling, MeanPooling

DRAW = np.random.default_rng(0).standard_normal
X = 3.0 * DRAW((3, 5, 6), np.float32) + 1.0
VALID = np.array([[1, 1, 1, 1, 1], [0, 1, 1, 0, 0], [1, 0, 0, 0, 0]], bool)
AFFINE = {"scale": DRAW(6, np.float32), "bias": DRAW(6, np.float32)}


def run(cfg, params, *args, state=None, train=False):
    return kn.functional(cfg.clone().set(input_dim=6).build(name="layer"))(params, state or {}, *args, train=train)


def affine(x):
    return x * AFFINE["scale"] + AFFINE["bias"]


def test_zero_centred_rms_norm_is_gemmas():
    scale = DRAW(6, np.float32)
    x = X.astype(np.float64)
    wanted = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * (1.0 + scale)
    cfg = RMSNorm.Config(zero_centered=True)
    np.testing.assert_allclose(run(cfg, {"scale": scale}, X)[0], wanted, rtol=1e-5)
    fresh = kn.initialize(cfg.clone().set(input_dim=6).build(name="layer"), jax.random.key(0))
    np.testing.assert_array_equal(fresh["scale"], 0.0)


def test_layer_norm_without_bias():
    wanted = (X - X.mean(-1, keepdims=True)) / X.std(-1, keepdims=True) * AFFINE["scale"]
    actual, _ = run(LayerNorm.Config(bias=False, eps=1e-12), {"scale": AFFINE["scale"]}, X)
    np.testing.assert_allclose(actual, wanted, rtol=1e-4)


def test_l2_norm_gives_length_one_and_keeps_zero():
    actual, _ = run(L2Norm.Config(), {}, X)
    np.testing.assert_allclose(np.linalg.norm(actual, axis=-1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(run(L2Norm.Config(), {}, jnp.zeros((1, 6)))[0], 0.0)


@pytest.mark.parametrize("padded", [False, True])
def test_group_norm(padded):
    valid = VALID if padded else np.ones_like(VALID)
    actual, _ = run(GroupNorm.Config(num_groups=2, eps=1e-12), AFFINE, X, valid if padded else None)
    wanted = np.zeros_like(X)
    for row in range(3):
        for g in (slice(0, 3), slice(3, 6)):
            seen = X[row, valid[row], g]
            wanted[row, :, g] = (X[row, :, g] - seen.mean()) / seen.std()
    np.testing.assert_allclose(actual, affine(wanted), rtol=1e-3, atol=1e-4)


def test_batch_norm_trains_on_the_batch_and_remembers_it():
    cfg = BatchNorm.Config(decay=0.75, eps=1e-12)
    state = {"mean": jnp.zeros(6), "variance": jnp.ones(6)}
    rows = X[VALID]
    actual, outputs = run(cfg, AFFINE, X, VALID, state=state, train=True)
    np.testing.assert_allclose(actual, affine((X - rows.mean(0)) / rows.std(0)), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(outputs.state["mean"], 0.25 * rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(outputs.state["variance"], 0.75 + 0.25 * rows.var(0, ddof=1), rtol=1e-5)
    actual, outputs = run(cfg, AFFINE, X, state=dict(outputs.state))
    assert not outputs.state
    running = 0.25 * rows.mean(0), 0.75 + 0.25 * rows.var(0, ddof=1)
    np.testing.assert_allclose(actual, affine((X - running[0]) / np.sqrt(running[1])), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (MeanPooling, [X[0].mean(0), X[1, 1:3].mean(0), X[2, 0]]),
        (MaxPooling, [X[0].max(0), X[1, 1:3].max(0), X[2, 0]]),
        (FirstPooling, [X[0, 0], X[1, 1], X[2, 0]]),
        (LastPooling, [X[0, 4], X[1, 2], X[2, 0]]),
    ],
)
def test_poolings_see_valid_positions_only(kind, wanted):
    np.testing.assert_allclose(run(kind.Config(), {}, X, VALID)[0], wanted, rtol=1e-5)
    np.testing.assert_allclose(run(kind.Config(), {}, X)[0][0], wanted[0], rtol=1e-5)
    assert run(kind.Config(), {}, jnp.asarray(X, jnp.bfloat16), VALID)[0].dtype == jnp.bfloat16


def test_groups_must_divide():
    with pytest.raises(ConfigError, match=r"input_dim \(6\) is not a multiple of num_groups \(4\)"):
        GroupNorm.Config(input_dim=6, num_groups=4).build(name="layer")
