"""Blocks, stacks, mixtures and basic layers pass through the conformance kit; small ones inside larger ones."""

from typing import Any

import jax
import jax.numpy as jnp
import sashimono as sm
from sashimono.contracts import Attention, Sequences
from sashimono.testing.layer import LayerConformance
from sashimono_layers.basic.batch_norm import BatchNorm
from sashimono_layers.basic.conv import Conv
from sashimono_layers.basic.conv_transpose import ConvTranspose
from sashimono_layers.basic.group_norm import GroupNorm
from sashimono_layers.basic.l2_norm import L2Norm
from sashimono_layers.basic.linear import Linear
from sashimono_layers.basic.pooling import MeanPooling
from sashimono_layers.basic.rms_norm import RMSNorm
from sashimono_layers.feedforward.activations import quick_gelu
from sashimono_layers.feedforward.bottleneck import Bottleneck
from sashimono_layers.feedforward.fused_gated import FusedGatedFeedForward
from sashimono_layers.feedforward.gated import GatedFeedForward
from sashimono_layers.feedforward.gating import ClampedProduct
from sashimono_layers.feedforward.plain import PlainFeedForward
from sashimono_layers.moe.balancing import BiasBalancing
from sashimono_layers.moe.capacity_dispatcher import CapacityDispatcher
from sashimono_layers.moe.expert_choice import ExpertChoiceMixture
from sashimono_layers.moe.gated_experts import GatedExperts
from sashimono_layers.moe.mixture import MixtureOfExperts
from sashimono_layers.moe.plain_experts import PlainExperts
from sashimono_layers.moe.router import TopKRouter
from sashimono_layers.moe.scoring import Sigmoid
from sashimono_layers.moe.selection import GroupLimited
from sashimono_layers.stack.chained import ChainedStack
from sashimono_layers.stack.output_norm import OutputNormBlock
from sashimono_layers.stack.parallel import ParallelBlock
from sashimono_layers.stack.pattern import PatternStack
from sashimono_layers.stack.repeated import RepeatedStack
from sashimono_layers.stack.residual import Residual
from sashimono_layers.stack.sandwich_norm import SandwichNormBlock

from .token_layers import OnTokens, WithSequences


class TestZeroCentredRMSNorm(OnTokens):
    def config(self) -> sm.Config:
        return RMSNorm.Config(input_dim=16, zero_centered=True)


class TestGroupNorm(OnTokens):
    def config(self) -> sm.Config:
        return GroupNorm.Config(input_dim=16, num_groups=4)


class TestBatchNorm(OnTokens):
    def config(self) -> sm.Config:
        return BatchNorm.Config(input_dim=16)


class TestL2Norm(OnTokens):
    def config(self) -> sm.Config:
        return L2Norm.Config(input_dim=16)


class TestMeanPooling(OnTokens):
    def config(self) -> sm.Config:
        return MeanPooling.Config(input_dim=16)


class TestConv(OnTokens):
    def config(self) -> sm.Config:
        return Conv.Config(input_dim=16, output_dim=8, window=(3,), padding="causal", groups=2)


class TestConvTranspose(OnTokens):
    def config(self) -> sm.Config:
        return ConvTranspose.Config(input_dim=16, output_dim=8, window=(3,), strides=(2,))


class TestResidual(LayerConformance):
    def config(self) -> sm.Config:
        return Residual.Config(input_dim=16, scale=0.5, layer_scale=0.1, adapter=Bottleneck.Config(width=4))

    def inputs(self, key: jax.Array) -> tuple[Any, ...]:
        x = jax.random.normal(key, (2, 6, 16))
        # The branch has the dtype of the policy in force, as a real one would.
        return x, jnp.cos(x) if x.dtype == jnp.float32 else x

    unsupported = {"bfloat16": "takes two activations, of which the kit casts the first only"}


class TestFusedGatedFeedForward(WithSequences):
    def config(self) -> sm.Config:
        return FusedGatedFeedForward.Config(
            input_dim=16, hidden_dim=24, activation=quick_gelu, gating=ClampedProduct.Config()
        )


class TestDeepSeekMixture(WithSequences):
    def config(self) -> sm.Config:
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

    def config(self) -> sm.Config:
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
    def config(self) -> sm.Config:
        return ExpertChoiceMixture.Config(
            input_dim=16, hidden_dim=12, num_experts=4, experts=PlainExperts.Config(bias=True)
        )


class Previous(Attention):
    """An attention that compiles at once: each token sees the one before it."""

    class Config(Attention.Config):
        foreign: sm.Foreign = sm.Foreign(tensors={"scale": "scale"})

    def setup(self) -> None:
        self.add_param("scale", (self.config.input_dim,), axes=("embed",))

    def forward(self, x: jax.Array, sequences: Sequences, cache: Any = None) -> tuple[jax.Array, Any]:
        return jnp.roll(x, 1, axis=1) * self.param("scale")[None, None], cache


def _branches() -> dict[str, sm.Config]:
    return {"attention": Previous.Config(), "feed_forward": PlainFeedForward.Config(hidden_dim=12)}


class TestChainOfStacks(WithSequences):
    unsupported = {"scan": "stacks are compared scanned and written out in tests/stack"}

    def config(self) -> sm.Config:
        first = RepeatedStack.Config(num_layers=1, layer=OutputNormBlock.Config(**_branches()))
        pattern = (SandwichNormBlock.Config(**_branches()), ParallelBlock.Config(**_branches()))
        return ChainedStack.Config(input_dim=16, stacks=(first, PatternStack.Config(num_layers=3, pattern=pattern)))
