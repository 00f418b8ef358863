"""Every attention layer, and what goes into its slots, passes through the conformance kit."""

from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.contracts import Sequences
from kanawa.testing.layer import LayerConformance
from kanawa_layers.attention.cross import CrossAttention
from kanawa_layers.attention.dot_product import SigmoidDotProduct
from kanawa_layers.attention.masks import AllOf, Bidirectional, Chunked, PrefixLM
from kanawa_layers.attention.slots import ElementwiseGate, HeadGate, LearnedSinks, PerDimScale, TemperatureTuning
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.positions.absolute import LearnedPositions
from kanawa_layers.positions.biases import Alibi, RelativeBias
from kanawa_layers.positions.frequency_scaling import YarnScaling
from kanawa_layers.positions.rotary import Rotary

from .kinds import ATTENTIONS, WIDTH, grouped


class _WithSequences(LayerConformance):
    """Two packed segments and padding."""

    def inputs(self, key: jax.Array) -> tuple[Any, ...]:
        segments = jnp.array([[1, 1, 1, 2, 2, 0]] * 2)
        positions = jnp.array([[0, 1, 2, 0, 1, 0]] * 2)
        return jax.random.normal(key, (2, 6, WIDTH)), Sequences(positions, segments)


class TestEverySlot(_WithSequences):
    def config(self) -> kn.Config:
        return grouped(
            window=3,
            logit_cap=20.0,
            qkv=Linear.Config(bias=True),
            output=Linear.Config(bias=True),
            query_norm=RMSNorm.Config(),
            key_norm=RMSNorm.Config(),
            query_scale=PerDimScale.Config(),
            sinks=LearnedSinks.Config(),
            gate=ElementwiseGate.Config(),
            positions=Rotary.Config(
                interleaved=True, scaling=YarnScaling.Config(factor=4.0, original_length=8), sections=(2, 1, 1)
            ),
        )


class TestRelativeBiasAndNormsOfAllHeads(_WithSequences):
    def config(self) -> kn.Config:
        return grouped(
            mask=AllOf.Config(masks=(Chunked.Config(size=2), PrefixLM.Config())),
            positions=RelativeBias.Config(num_buckets=4, max_distance=8),
            norm_all_heads=True,
            query_norm=RMSNorm.Config(),
            key_norm=RMSNorm.Config(),
            gate=HeadGate.Config(),
        )

    def inputs(self, key: jax.Array) -> tuple[Any, ...]:
        x, sequences = super().inputs(key)
        return x, sequences._replace(prefix_lengths=jnp.array([2, 3]))


class TestSigmoidBothWays(_WithSequences):
    def config(self) -> kn.Config:
        return grouped(
            mask=Bidirectional.Config(),
            dot_product=SigmoidDotProduct.Config(length=6),
            positions=Alibi.Config(),
            query_scale=TemperatureTuning.Config(floor_scale=2.0),
        )


class TestLatentAttention(_WithSequences):
    def config(self) -> kn.Config:
        return ATTENTIONS["latent-low-rank"]


class TestCrossAttention(_WithSequences):
    def config(self) -> kn.Config:
        norms = {"query_norm": RMSNorm.Config(), "key_norm": RMSNorm.Config()}
        return CrossAttention.Config(input_dim=WIDTH, num_heads=4, num_kv_heads=2, memory_dim=12, **norms)

    def inputs(self, key: jax.Array) -> tuple[Any, ...]:
        x, sequences = super().inputs(key)
        memory = jax.random.normal(jax.random.key(5), (2, 4, 12)).astype(x.dtype)
        return x, sequences._replace(memory=memory, memory_segment_ids=jnp.array([[1, 2, 2, 0]] * 2))

    unsupported = {"bfloat16": "the memory given here is fp32"}


class TestLearnedPositions(LayerConformance):
    unsupported = {"bfloat16": "takes no activations"}

    def config(self) -> kn.Config:
        return LearnedPositions.Config(output_dim=8, max_length=6)

    def inputs(self, key: jax.Array) -> tuple[Any, ...]:
        return (jnp.array([[0, 1, 2, 3, 4, 5]]),)
