"""Blocks, stacks, mixtures and basic layers pass through the conformance kit; small ones inside larger ones."""

from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.contracts import SequenceMixer, Sequences
from kanawa.testing.layer import LayerConformance
from kanawa_layers.basic.conv import Conv, ConvTranspose
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import BatchNorm, GroupNorm, L2Norm, RMSNorm
from kanawa_layers.basic.pooling import MeanPooling
from kanawa_layers.feedforward.activations import quick_gelu
from kanawa_layers.feedforward.gated import ClampedProduct, FusedGatedFeedForward, GatedFeedForward
from kanawa_layers.feedforward.plain import Bottleneck, PlainFeedForward
from kanawa_layers.moe.dispatchers import CapacityDispatcher
from kanawa_layers.moe.expert_choice import ExpertChoiceMixture
from kanawa_layers.moe.experts import GatedExperts, PlainExperts
from kanawa_layers.moe.mixture import MixtureOfExperts
from kanawa_layers.moe.router import BiasBalancing, GroupLimited, Sigmoid, TopKRouter
from kanawa_layers.stack.chained import ChainedStack
from kanawa_layers.stack.pattern import PatternStack
from kanawa_layers.stack.repeated import RepeatedStack
from kanawa_layers.stack.residual_blocks import OutputNormBlock, ParallelBlock, Residual, SandwichNormBlock

from .token_layers import OnTokens, WithSequences


class TestZeroCentredRMSNorm(OnTokens):
    def config(self) -> kn.Config:
        return RMSNorm.Config(input_dim=16, zero_centered=True)


class TestGroupNorm(OnTokens):
    def config(self) -> kn.Config:
        return GroupNorm.Config(input_dim=16, num_groups=4)


class TestBatchNorm(OnTokens):
    def config(self) -> kn.Config:
        return BatchNorm.Config(input_dim=16)


class TestL2Norm(OnTokens):
    def config(self) -> kn.Config:
        return L2Norm.Config(input_dim=16)


class TestMeanPooling(OnTokens):
    def config(self) -> kn.Config:
        return MeanPooling.Config(input_dim=16)


class TestConv(OnTokens):
    def config(self) -> kn.Config:
        return Conv.Config(input_dim=16, output_dim=8, window=(3,), padding="causal", groups=2)


class TestConvTranspose(OnTokens):
    def config(self) -> kn.Config:
        return ConvTranspose.Config(input_dim=16, output_dim=8, window=(3,), strides=(2,))


class TestResidual(LayerConformance):
    def config(self) -> kn.Config:
        return Residual.Config(input_dim=16, scale=0.5, layer_scale=0.1, adapter=Bottleneck.Config(width=4))

    def inputs(self, key: jax.Array) -> tuple[Any, ...]:
        x = jax.random.normal(key, (2, 6, 16))
        # The branch has the dtype of the policy in force, as a real one would.
        return x, jnp.cos(x) if x.dtype == jnp.float32 else x

    unsupported = {"bfloat16": "takes two activations, of which the kit casts the first only"}


class TestFusedGatedFeedForward(WithSequences):
    def config(self) -> kn.Config:
        return FusedGatedFeedForward.Config(
            input_dim=16, hidden_dim=24, activation=quick_gelu, gating=ClampedProduct.Config()
        )


class TestDeepSeekMixture(WithSequences):
    def config(self) -> kn.Config:
        router = TopKRouter.Config(
            scoring=Sigmoid.Config(),
            selection=GroupLimited.Config(num_groups=4, top_groups=2, group_top=1),
            balancing=BiasBalancing.Config(),
            weight_scale=2.5,
        )
        shared = GatedFeedForward.Config(hidden_dim=8)
        return MixtureOfExperts.Config(input_dim=16, hidden_dim=12, num_experts=4, router=router, shared=shared)


class TestGptOssMixtureWithCapacity(WithSequences):
    unsupported = {"scan": "the other mixture is compared so; this one compiles for long"}

    def config(self) -> kn.Config:
        return MixtureOfExperts.Config(
            input_dim=16,
            hidden_dim=12,
            num_experts=4,
            router=TopKRouter.Config(bias=True),
            experts=GatedExperts.Config(bias=True, activation=quick_gelu, gating=ClampedProduct.Config()),
            dispatcher=CapacityDispatcher.Config(),
            shared=GatedFeedForward.Config(hidden_dim=8),
            shared_gate=Linear.Config(),
        )


class TestExpertChoice(WithSequences):
    def config(self) -> kn.Config:
        return ExpertChoiceMixture.Config(
            input_dim=16, hidden_dim=12, num_experts=4, experts=PlainExperts.Config(bias=True)
        )


class Previous(SequenceMixer):
    """An attention that compiles at once: each token sees the one before it."""

    class Config(SequenceMixer.Config):
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"scale": "scale"})

    def setup(self) -> None:
        self.add_param("scale", (self.config.input_dim,), axes=("embed",))

    def forward(self, x: jax.Array, sequences: Sequences, cache: Any = None) -> tuple[jax.Array, Any]:
        return jnp.roll(x, 1, axis=1) * self.param("scale")[None, None], cache


def _branches() -> dict[str, kn.Config]:
    return {"attention": Previous.Config(), "feed_forward": PlainFeedForward.Config(hidden_dim=12)}


class TestChainOfStacks(WithSequences):
    unsupported = {"scan": "stacks are compared scanned and written out in tests/stack"}

    def config(self) -> kn.Config:
        first = RepeatedStack.Config(num_layers=1, layer=OutputNormBlock.Config(**_branches()))
        pattern = (SandwichNormBlock.Config(**_branches()), ParallelBlock.Config(**_branches()))
        return ChainedStack.Config(input_dim=16, stacks=(first, PatternStack.Config(num_layers=3, pattern=pattern)))
