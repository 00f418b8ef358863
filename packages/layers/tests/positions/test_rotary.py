"""Rotary embeddings: scores depend on position differences, position 0 turns nothing, variants stretch as they say."""

import functools
import json

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa.errors import ConfigError
from kanawa_layers.positions.frequency_scaling import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    YarnScaling,
)
from kanawa_layers.positions.rotary import Rotary

Q = jax.random.normal(jax.random.key(0), (1, 1, 2, 16))
K = jax.random.normal(jax.random.key(1), (1, 1, 2, 16))
SCALINGS = [
    None,
    LinearScaling.Config(factor=4.0),
    NTKScaling.Config(factor=4.0),
    Llama3Scaling.Config(),
    YarnScaling.Config(factor=8.0, original_length=64),
    LongRopeScaling.Config(short_factors=(1.0,) * 8, long_factors=(3.0,) * 8, original_length=64, max_length=512),
    DynamicNTKScaling.Config(original_length=64, length=512),
]
#: How pairs lie, how much is turned, and by how many streams.
LAYOUTS = [{}, {"interleaved": True}, {"sections": (4, 2, 2)}, {"fraction": 0.5}]


@functools.cache
def compiled(text):
    rotate = kn.functional(kn.from_json(json.loads(text)).build(name="r"), "rotate")
    return jax.jit(lambda positions: rotate({}, {}, Q, K, positions)[0])


def turned(cfg, q_at, k_at):
    rotate = compiled(json.dumps(kn.to_json(cfg.set(head_dim=16))))
    return rotate(jnp.array([[q_at]]))[0], rotate(jnp.array([[k_at]]))[1]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 500),
    st.integers(0, 500),
    st.integers(0, 500),
    st.sampled_from(range(len(SCALINGS))),
    st.sampled_from(range(len(LAYOUTS))),
)
def test_scores_depend_on_differences_only(q_at, k_at, shift, scaling, layout):
    if "fraction" in LAYOUTS[layout] and scaling == 5:
        scaling = 0  # The factors are for a whole head.

    def score(a, b):
        q, k = turned(Rotary.Config(scaling=SCALINGS[scaling], **LAYOUTS[layout]), a, b)
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


def test_interleaved_pairs_as_complex_numbers():
    q, _ = turned(Rotary.Config(theta=100.0, interleaved=True), 3, 0)
    angle = 3 * 100.0 ** -(np.arange(8) / 8)
    x = np.asarray(Q, np.float64)
    wanted = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)
    np.testing.assert_allclose(q, np.stack([wanted.real, wanted.imag], -1).reshape(q.shape), atol=1e-5)


def test_each_section_turns_by_its_own_stream():
    rotary = Rotary.Config(head_dim=16, sections=(4, 2, 2)).build(name="r")
    rotate = kn.functional(rotary, "rotate")
    q, k = rotate({}, {}, Q, K, jnp.array([[[7, 2, 9]]]))[0]
    by_stream = [turned(Rotary.Config(), place, place) for place in (7, 2, 9)]
    stream_of = np.tile([0, 0, 0, 0, 1, 1, 2, 2], 2)
    for actual, which in ((q, 0), (k, 1)):
        wanted = np.stack([np.asarray(pair[which])[0, 0] for pair in by_stream])
        np.testing.assert_allclose(actual[0, 0], wanted[stream_of, :, np.arange(16)].T, atol=1e-6)


def test_sections_must_cover_all_frequencies():
    with pytest.raises(ConfigError, match=r"sections \(3, 2\) sum to 5, but there are 8 frequencies"):
        Rotary.Config(head_dim=16, sections=(3, 2)).build(name="r")


def test_the_attention_factor_scales_scores_by_its_square():
    scaling = YarnScaling.Config(factor=8.0, original_length=64, multiplier=1.5)
    q, k = turned(Rotary.Config(scaling=scaling), 0, 0)
    np.testing.assert_allclose((q * k).sum(-1), 2.25 * (Q * K).sum(-1), rtol=1e-5)


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
    with pytest.raises(ConfigError, match=r"fraction: expected float \(above 0, at most 1\), got 1.5"):
        Rotary.Config(head_dim=16, fraction=1.5).build(name="r")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_by_matmul_gives_the_same_numbers_and_gradients(layout, dtype):
    positions = jnp.array([[3]]) if "sections" not in layout else jnp.array([[[3, 5, 7]]])
    q, k = Q.astype(dtype), K.astype(dtype)

    def turned(by_matmul):
        module = Rotary.Config(head_dim=16, by_matmul=by_matmul, **layout).build(name="r")
        rotate = kn.functional(module, "rotate")
        both, pull = jax.vjp(lambda q, k: rotate({}, {}, q, k, positions)[0], q, k)
        return both, pull(both)

    # In bf16 both round once, at the end: a sum in another order may fall on the other side of a tie.
    bound = 2.0**-8 if dtype == "bfloat16" else 1e-6
    for a, b in zip(jax.tree.leaves(turned(True)), jax.tree.leaves(turned(False)), strict=True):
        np.testing.assert_allclose(a.astype("float32"), b.astype("float32"), rtol=bound, atol=1e-6)
