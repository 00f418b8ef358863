"""Feed-forwards against their formulas in NumPy, and variants against each other."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import Sequences
from kanawa.errors import ConfigError
from kanawa_layers.basic.linear import Linear
from kanawa_layers.feedforward.activations import gelu_exact, gelu_tanh, identity, quick_gelu, squared_relu
from kanawa_layers.feedforward.gated import ClampedProduct, FusedGatedFeedForward, GatedFeedForward, Product
from kanawa_layers.feedforward.plain import PlainFeedForward

X = 4.0 * jax.random.normal(jax.random.key(0), (2, 3, 8))
BIASED = Linear.Config(bias=True)


def run(cfg, params):
    module = cfg.set(input_dim=8, hidden_dim=12).build(name="ff")
    return np.asarray(kn.functional(module)(params, {}, X, Sequences())[0])


def drawn(cfg):
    """Parameters that are nowhere zero, so that biases count."""
    module = cfg.clone().set(input_dim=8, hidden_dim=12).build(name="ff")
    params = kn.initialize(module, jax.random.key(1))
    return jax.tree.map(lambda p: p + 0.3 * jax.random.normal(jax.random.key(p.size), p.shape), params)


def arrays(params):
    return jax.tree.map(lambda p: np.asarray(p, np.float64), params)


def test_clamped_swiglu_is_gpt_oss():
    cfg = GatedFeedForward.Config(
        activation=quick_gelu, gating=ClampedProduct.Config(), gate=BIASED, up=BIASED, down=BIASED
    )
    params = drawn(cfg)
    p, x = arrays(params), np.asarray(X, np.float64)
    gate = np.minimum(x @ p["gate"]["weight"] + p["gate"]["bias"], 7.0)
    up = np.clip(x @ p["up"]["weight"] + p["up"]["bias"], -7.0, 7.0)
    assert gate.max() == 7.0, "nothing is clamped: the test proves nothing"
    assert abs(up).max() == 7.0
    hidden = (up + 1.0) * gate / (1.0 + np.exp(-1.702 * gate))
    wanted = hidden @ p["down"]["weight"] + p["down"]["bias"]
    np.testing.assert_allclose(run(cfg, params), wanted, atol=2e-4)


def test_fused_equals_separate_projections():
    separate = GatedFeedForward.Config(activation=gelu_tanh, gate=BIASED, up=BIASED)
    params = drawn(separate)
    gate, up = params["gate"], params["up"]
    joint = {name: jnp.stack([gate[name], up[name]], axis=-2) for name in ("weight", "bias")}
    fused = FusedGatedFeedForward.Config(activation=gelu_tanh, gate_up=BIASED)
    actual = run(fused, {"gate_up": joint, "down": params["down"]})
    np.testing.assert_allclose(actual, run(separate, params), atol=1e-5)


def test_a_pair_of_activations():
    cfg = GatedFeedForward.Config(activation=identity, gating=Product.Config(up_activation=jnp.tanh))
    params = drawn(cfg)
    p, x = arrays(params), np.asarray(X, np.float64)
    hidden = x @ p["gate"]["weight"] * np.tanh(x @ p["up"]["weight"])
    np.testing.assert_allclose(run(cfg, params), hidden @ p["down"]["weight"], atol=2e-4)


def test_plain_with_biases():
    cfg = PlainFeedForward.Config(activation=squared_relu, up=BIASED, down=BIASED)
    params = drawn(cfg)
    p, x = arrays(params), np.asarray(X, np.float64)
    hidden = np.maximum(x @ p["up"]["weight"] + p["up"]["bias"], 0.0) ** 2
    np.testing.assert_allclose(run(cfg, params), hidden @ p["down"]["weight"] + p["down"]["bias"], rtol=1e-4)


def test_gelu_kinds_differ_and_exact_is_the_normal_distribution():
    from math import erf

    x = np.linspace(-4.0, 4.0, 41, dtype=np.float32)
    wanted = [v * 0.5 * (1.0 + erf(v / 2**0.5)) for v in x.astype(np.float64)]
    np.testing.assert_allclose(gelu_exact(jnp.asarray(x)), wanted, atol=1e-6)
    assert 1e-4 < np.abs(gelu_tanh(jnp.asarray(x)) - np.asarray(wanted)).max() < 1e-3
    assert 1e-3 < np.abs(quick_gelu(jnp.asarray(x)) - np.asarray(wanted)).max() < 3e-2


def test_flops_of_fused_and_separate_agree():
    flops = [
        kind.Config(input_dim=8, hidden_dim=12).build(name="ff").flops_per_token(1.0)
        for kind in (GatedFeedForward, FusedGatedFeedForward)
    ]
    assert flops == [6.0 * 8 * 12] * 2


def test_bad_limit():
    with pytest.raises(ConfigError, match=r"limit.*above 0, finite"):
        ClampedProduct.Config(limit=-1.0).build()
