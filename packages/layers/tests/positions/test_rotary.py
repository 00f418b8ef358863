"""Rotary embeddings: scores depend on position differences, position 0 turns nothing, variants stretch as they say."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sashimono as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from sashimono.errors import ConfigError
from sashimono_layers.positions.frequency_scaling import LinearScaling, Llama3Scaling, NTKScaling
from sashimono_layers.positions.rotary import Rotary

Q = jax.random.normal(jax.random.key(0), (1, 1, 2, 16))
K = jax.random.normal(jax.random.key(1), (1, 1, 2, 16))
SCALINGS = [None, LinearScaling.Config(factor=4.0), NTKScaling.Config(factor=4.0), Llama3Scaling.Config()]


@functools.cache
def compiled(text):
    rotate = sm.functional(sm.from_json(json.loads(text)).build(name="r"), "rotate")
    return jax.jit(lambda positions: rotate({}, {}, Q, K, positions)[0])


def turned(cfg, q_at, k_at):
    rotate = compiled(json.dumps(sm.to_json(cfg.set(head_dim=16))))
    return rotate(jnp.array([[q_at]]))[0], rotate(jnp.array([[k_at]]))[1]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 500),
    st.integers(0, 500),
    st.integers(0, 500),
    st.sampled_from(range(len(SCALINGS))),
    st.sampled_from([0.5, 1.0]),
)
def test_scores_depend_on_differences_only(q_at, k_at, shift, scaling, fraction):
    def score(a, b):
        q, k = turned(Rotary.Config(scaling=SCALINGS[scaling], fraction=fraction), a, b)
        return (q * k).sum(-1)

    np.testing.assert_allclose(score(q_at, k_at), score(q_at + shift, k_at + shift), atol=2e-3)


def test_position_zero_is_the_identity():
    q, k = turned(Rotary.Config(), 0, 0)
    np.testing.assert_allclose(q, Q)
    np.testing.assert_allclose(k, K)


def test_partial_rotation_leaves_the_rest():
    q, _ = turned(Rotary.Config(fraction=0.25), 9, 9)
    np.testing.assert_array_equal(q[..., 4:], Q[..., 4:])
    assert not np.allclose(q[..., :4], Q[..., :4])


def test_half_split_pairs_as_complex_numbers():
    q, _ = turned(Rotary.Config(theta=100.0), 3, 0)
    angle = 3 * 100.0 ** -(np.arange(8) / 8)
    x = np.asarray(Q, np.float64)
    wanted = (x[..., :8] + 1j * x[..., 8:]) * np.exp(1j * angle)
    np.testing.assert_allclose(q, np.concatenate([wanted.real, wanted.imag], -1), atol=1e-5)


def frequencies(scaling):
    return Rotary.Config(head_dim=16, scaling=scaling).build(name="r").inverse_frequencies()


def test_linear_scaling_divides_all():
    np.testing.assert_allclose(frequencies(SCALINGS[1]), frequencies(None) / 4, rtol=1e-6)


def test_ntk_scaling_keeps_the_highest_and_divides_the_lowest():
    plain, scaled = frequencies(None), frequencies(SCALINGS[2])
    np.testing.assert_allclose(scaled[0], plain[0], rtol=1e-6)
    np.testing.assert_allclose(scaled[-1], plain[-1] / 4, rtol=1e-4)


def test_llama3_scaling_keeps_high_and_divides_low_frequencies():
    plain, scaled = frequencies(None), frequencies(SCALINGS[3])
    np.testing.assert_allclose(scaled[0], plain[0], rtol=1e-6)
    np.testing.assert_allclose(scaled[-1], plain[-1] / 8, rtol=1e-6)


def test_bad_fraction():
    with pytest.raises(ConfigError, match="fraction is 1.5, expected 0 < fraction <= 1"):
        Rotary.Config(head_dim=16, fraction=1.5).build(name="r")
