"""Every recurrent layer passes through the conformance kit; the modifier that puts them in does too."""

from typing import Any

import jax
import kanawa as kn
import pytest
from kanawa.contracts import Sequences
from kanawa.errors import ModuleError, UsageError
from kanawa.testing.layer import LayerConformance
from kanawa.testing.modifier import ModifierConformance
from kanawa_layers.modifiers.by_name import Mixer
from kanawa_layers.recipes.llama import llama_tiny
from kanawa_layers.recurrent.gated_delta_net import GatedDeltaNet
from kanawa_layers.recurrent.griffin import GriffinRecurrence
from kanawa_layers.recurrent.kimi_delta import KimiDeltaAttention
from kanawa_layers.recurrent.lstm import LSTM
from kanawa_layers.recurrent.mamba2 import Mamba2
from kanawa_layers.recurrent.rattention import RAttention


class _Mixer(LayerConformance):
    """One segment a row, [2, 6, 16]: test_mixers.py has segments, and the kit runs every operation on its own."""

    def inputs(self, key: jax.Array) -> tuple[Any, ...]:
        return jax.random.normal(key, (2, 6, 16)), Sequences()


class TestMamba2(_Mixer):
    def config(self) -> kn.Config:
        return Mamba2.Config(input_dim=16, num_heads=4, num_groups=2, state_dim=8, step_limit=(0.0, 2.0))


class TestGatedDeltaNet(_Mixer):
    def config(self) -> kn.Config:
        return GatedDeltaNet.Config(input_dim=16, num_heads=4, num_key_heads=2, value_dim=8)


@pytest.mark.nightly
class TestKimiDeltaAttention(_Mixer):
    def config(self) -> kn.Config:
        return KimiDeltaAttention.Config(input_dim=16, num_heads=2, value_dim=6)


class TestGriffinRecurrence(_Mixer):
    def config(self) -> kn.Config:
        return GriffinRecurrence.Config(input_dim=16, num_heads=2, width=24)


@pytest.mark.nightly
class TestLSTM(_Mixer):
    def config(self) -> kn.Config:
        return LSTM.Config(input_dim=16, hidden_dim=8)


@pytest.mark.nightly
class TestRAttention(_Mixer):
    def config(self) -> kn.Config:
        return RAttention.Config(input_dim=16, num_heads=4, num_kv_heads=2, window=2)


class TestMixerModifier(ModifierConformance):
    touches = ("stack.layer.attention", "stack.layer.attention.**")

    def modifier(self) -> kn.Modifier:
        return Mixer.Config(kind="gated-delta-net").build()

    def config(self) -> kn.Config:
        return llama_tiny()


def test_a_kind_that_mixes_nothing_is_refused():
    with pytest.raises(UsageError, match="'rms-norm' is .* which fills no SequenceMixer slot"):
        Mixer.Config(kind="rms-norm").build()(llama_tiny())


def test_channels_that_do_not_divide_are_named():
    with pytest.raises(ModuleError, match="32 channels don't divide into 3 heads; 2 or 4 heads would fit"):
        Mamba2.Config(input_dim=16, num_heads=3).build(name="layer")
