"""Every layer of the package passes through the conformance kit that strangers use."""

import kanawa as kn
from kanawa.testing.mixer import MixerConformance
from kanawa.testing.modifier import ModifierConformance
from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.attention.value_norm import NormedValueAttention
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import LayerNorm, RMSNorm
from kanawa_layers.feedforward.gated import GatedFeedForward
from kanawa_layers.feedforward.plain import PlainFeedForward
from kanawa_layers.modifiers.mixture import MoE
from kanawa_layers.modifiers.positions import Rope, RopeLinear, RopeLlama3, RopeNTK
from kanawa_layers.moe.mixture import MixtureOfExperts
from kanawa_layers.positions.biases import NoPositions
from kanawa_layers.positions.leading_frequencies import LeadingFrequencies
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.llama import llama_tiny
from kanawa_layers.stack.repeated import RepeatedStack
from kanawa_layers.stack.residual_blocks import PreNormBlock

from .token_layers import OnTokens, WithSequences

#: Pairs of the other half don't rotate.
HALF = LeadingFrequencies.Config(fraction=0.5)


class TestRMSNorm(OnTokens):
    def config(self) -> kn.Config:
        return RMSNorm.Config(input_dim=16)


class TestLayerNorm(OnTokens):
    def config(self) -> kn.Config:
        return LayerNorm.Config(input_dim=16)


class TestLinear(OnTokens):
    def config(self) -> kn.Config:
        return Linear.Config(input_shape=(16,), output_shape=(2, 4), axes=("embed", "heads", "head_dim"), bias=True)


class TestGatedFeedForward(WithSequences):
    def config(self) -> kn.Config:
        return GatedFeedForward.Config(input_dim=16, hidden_dim=24)


class TestPlainFeedForward(WithSequences):
    def config(self) -> kn.Config:
        return PlainFeedForward.Config(input_dim=16, hidden_dim=24)


class TestMixtureOfExperts(WithSequences):
    def config(self) -> kn.Config:
        return MixtureOfExperts.Config(input_dim=16, hidden_dim=24, num_experts=4)


class TestGroupedQueryAttention(WithSequences):
    def config(self) -> kn.Config:
        return GroupedQueryAttention.Config(input_dim=16, num_heads=4, num_kv_heads=2)


class TestKeysAsValues(MixerConformance):
    def config(self) -> kn.Config:
        return NormedValueAttention.Config(
            input_dim=16, num_heads=4, num_kv_heads=2, value=None, positions=Rotary.Config(scaling=HALF)
        )


class TestGroupedQueryAttentionWithItsCache(MixerConformance):
    def config(self) -> kn.Config:
        return GroupedQueryAttention.Config(input_dim=16, num_heads=4, num_kv_heads=2)


class TestMultiHeadWindowedNormed(WithSequences):
    def config(self) -> kn.Config:
        return GroupedQueryAttention.Config(
            input_dim=16,
            num_heads=2,
            window=2,
            logit_cap=20.0,
            query_norm=RMSNorm.Config(),
            key_norm=RMSNorm.Config(),
            positions=NoPositions.Config(),
        )


def _block() -> PreNormBlock.Config:
    return PreNormBlock.Config(
        attention=GroupedQueryAttention.Config(num_heads=4, num_kv_heads=1),
        feed_forward=GatedFeedForward.Config(hidden_dim=24),
    )


class TestPreNormBlock(WithSequences):
    def config(self) -> kn.Config:
        return _block().set(input_dim=16)


class TestScannedStack(WithSequences):
    def config(self) -> kn.Config:
        return RepeatedStack.Config(input_dim=16, num_layers=3, layer=_block())


class _OnLlama(ModifierConformance):
    def config(self) -> kn.Config:
        return llama_tiny()


class TestMoE(_OnLlama):
    touches = ("stack.layer.feed_forward", "stack.layer.feed_forward.**")

    def modifier(self) -> kn.Modifier:
        return MoE.Config(num_experts=4).build()


class TestRope(_OnLlama):
    touches = ("stack.layer.attention.positions", "stack.layer.attention.positions.**")

    def modifier(self) -> kn.Modifier:
        return Rope.Config(theta=5e5, fraction=0.5).build()


class TestRopeLinear(_OnLlama):
    touches = ("stack.layer.attention.positions.scaling", "stack.layer.attention.positions.scaling.**")

    def modifier(self) -> kn.Modifier:
        return RopeLinear.Config().build()


class TestRopeNTK(TestRopeLinear):
    def modifier(self) -> kn.Modifier:
        return RopeNTK.Config().build()


class TestRopeLlama3(TestRopeLinear):
    def modifier(self) -> kn.Modifier:
        return RopeLlama3.Config().build()
