"""Stretched frequencies equal those of `transformers` 5's `modeling_rope_utils`, whose numbers are the tables here."""

import numpy as np
import pytest
from kanawa.errors import ConfigError
from kanawa_layers.positions.frequency_scaling import (
    DynamicNTKScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    YarnScaling,
    yarn_mscale,
)
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import rope_keys

LONG = (1.0, 1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 13.0)
LONG_ROPE = {"short_factors": (1.0,) * 8, "long_factors": LONG, "original_length": 4096, "max_length": 131_072}

#: Scaling, base, the eight frequencies of a head of 16, factor of cos and sin.
TABLE = {
    "yarn as in gpt-oss": (
        YarnScaling.Config(factor=32.0, original_length=4096, truncate=False),
        150_000.0,
        [1.0, 0.225418, 0.05081327, 0.006794959, 0.0004564839, 1.818834e-05, 4.099978e-06, 9.24209e-07],
        1.3465735902799727,
    ),
    "yarn with both mscales": (
        YarnScaling.Config(factor=40.0, original_length=4096, mscale=1.0, mscale_all_dim=0.707),
        10_000.0,
        [1.0, 0.3162278, 0.1, 0.02391472, 0.005125, 0.0008498622, 2.5e-05, 7.905694e-06],
        1.0857263992561355,
    ),
    "yarn": (
        YarnScaling.Config(factor=4.0, original_length=512),
        10_000.0,
        [1.0, 0.2569351, 0.0625, 0.01383497, 0.0025, 0.0007905695, 0.00025, 7.905695e-05],
        1.138629436111989,
    ),
    "longrope": (
        LongRopeScaling.Config(**LONG_ROPE),
        10_000.0,
        [1.0, 0.2874798, 0.06666667, 0.01581139, 0.003333333, 0.0006324556, 0.000125, 2.432521e-05],
        1.1902380714238083,
    ),
    "dynamic ntk": (
        DynamicNTKScaling.Config(factor=2.0, original_length=4096, length=200_000),
        10_000.0,
        [1.0, 0.1645871, 0.02708891, 0.004458484, 0.0007338088, 0.0001207754, 1.987808e-05, 3.271674e-06],
        1.0,
    ),
    "llama 3": (
        Llama3Scaling.Config(),
        500_000.0,
        [1.0, 0.1939228, 0.03760603, 0.007292665, 0.000524846, 3.428102e-05, 6.64787e-06, 1.289173e-06],
        1.0,
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_frequencies_and_factor(name):
    scaling, theta, wanted, factor = TABLE[name]
    rotary = Rotary.Config(head_dim=16, theta=theta, scaling=scaling).build(name="r")
    np.testing.assert_allclose(rotary.inverse_frequencies(), wanted, rtol=2e-6)
    assert scaling.build().attention_factor() == pytest.approx(factor, rel=1e-12)


def test_longrope_is_short_where_sequences_are():
    plain = Rotary.Config(head_dim=16).build(name="r").inverse_frequencies()
    scaling = LongRopeScaling.Config(**LONG_ROPE, length=4096)
    rotary = Rotary.Config(head_dim=16, scaling=scaling).build(name="r")
    np.testing.assert_allclose(rotary.inverse_frequencies(), plain, rtol=1e-6)


def test_longrope_needs_a_factor_for_each_frequency():
    rotary = Rotary.Config(head_dim=8, scaling=LongRopeScaling.Config(**LONG_ROPE)).build(name="r")
    with pytest.raises(ConfigError, match="long_factors has 8 numbers, but 8 rotated dimensions have 4 frequencies"):
        rotary.inverse_frequencies()


def test_dynamic_ntk_does_nothing_up_to_the_trained_length():
    plain = Rotary.Config(head_dim=16).build(name="r").inverse_frequencies()
    scaling = DynamicNTKScaling.Config(original_length=4096, length=1000)
    actual = Rotary.Config(head_dim=16, scaling=scaling).build(name="r").inverse_frequencies()
    np.testing.assert_allclose(actual, plain, rtol=1e-6)


def test_mscale_grows_with_the_logarithm():
    assert yarn_mscale(0.5) == 1.0
    assert yarn_mscale(np.e, 2.0) == pytest.approx(1.2)
    with pytest.raises(ConfigError, match="factor is 0.5, expected at least 1"):
        YarnScaling.Config(factor=0.5, original_length=8).freeze()


@pytest.mark.parametrize(
    "scaling",
    [NTKScaling.Config(factor=4.0), DynamicNTKScaling.Config(factor=2.0, original_length=8, length=64)],
)
def test_a_single_frequency_stays(scaling):
    assert scaling.build().stretch(np.ones(1, np.float32), 10_000.0, 2).tolist() == [1.0]


def test_equal_factors_switch_where_a_wavelength_lies_just_there():
    switch = Llama3Scaling.Config(low_frequency_factor=1.0, high_frequency_factor=1.0, original_length=8, factor=8.0)
    just_there = np.float32(2 * np.pi / 8)
    actual = switch.build().stretch(np.array([2 * just_there, just_there, just_there / 2], np.float32), 10_000.0, 6)
    assert np.isfinite(actual).all()
    np.testing.assert_allclose(actual[0], 2 * just_there)
    np.testing.assert_allclose(actual[2], just_there / 16)


def test_factors_the_wrong_way_round():
    with pytest.raises(ConfigError, match=r"low_frequency_factor \(4.0\) is above high_frequency_factor \(1.0\)"):
        Llama3Scaling.Config(low_frequency_factor=4.0, high_frequency_factor=1.0).freeze()


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [(Llama3Scaling.Config(factor=8.0), 65_536), (YarnScaling.Config(factor=4.0, original_length=512), 2048)],
)
def test_an_export_says_how_long_sequences_may_be(scaling, longest):
    assert rope_keys(Rotary.Config(scaling=scaling))["max_position_embeddings"] == longest
