"""Every attention layer, and what goes into its slots, passes through the conformance kit."""

from typing import Any

import jax
import jax.numpy as jnp
import sashimono as sm
from sashimono.contracts import Sequences
from sashimono.testing.layer import LayerConformance
from sashimono_layers.attention.cross import CrossAttention
from sashimono_layers.attention.masks import Bidirectional, PrefixLM
from sashimono_layers.attention.sinks import ZeroSinks
from sashimono_layers.basic.linear import Linear
from sashimono_layers.basic.rms_norm import RMSNorm
from sashimono_layers.positions.absolute import LearnedPositions

from .kinds import ATTENTIONS, WIDTH, grouped


class _WithSequences(LayerConformance):
    """Two packed segments and padding."""

    def inputs(self, key: jax.Array) -> tuple[Any, ...]:
        segments = jnp.array([[1, 1, 1, 2, 2, 0]] * 2)
        positions = jnp.array([[0, 1, 2, 0, 1, 0]] * 2)
        return jax.random.normal(key, (2, 6, WIDTH)), Sequences(positions, segments)


class TestSinksAndYarn(_WithSequences):
    def config(self) -> sm.Config:
        return ATTENTIONS["sinks"]


class TestScaleAndGate(_WithSequences):
    def config(self) -> sm.Config:
        return ATTENTIONS["window"]


class TestFusedAndChunked(_WithSequences):
    def config(self) -> sm.Config:
        return ATTENTIONS["chunked"]


class TestNormsOfAllHeads(_WithSequences):
    def config(self) -> sm.Config:
        return ATTENTIONS["tuned"]


class TestRelativeBias(_WithSequences):
    def config(self) -> sm.Config:
        return ATTENTIONS["relative"]


class TestSigmoid(_WithSequences):
    def config(self) -> sm.Config:
        return ATTENTIONS["sigmoid"]


class TestLatentAttention(_WithSequences):
    def config(self) -> sm.Config:
        return ATTENTIONS["latent-low-rank"]


class TestBidirectional(_WithSequences):
    def config(self) -> sm.Config:
        return grouped(mask=Bidirectional.Config(), sinks=ZeroSinks.Config(), output=Linear.Config(bias=True))


class TestPrefix(_WithSequences):
    def config(self) -> sm.Config:
        return grouped(mask=PrefixLM.Config())

    def inputs(self, key: jax.Array) -> tuple[Any, ...]:
        x, sequences = super().inputs(key)
        return x, sequences._replace(prefix_lengths=jnp.array([2, 0]))


class TestCrossAttention(_WithSequences):
    def config(self) -> sm.Config:
        norms = {"query_norm": RMSNorm.Config(), "key_norm": RMSNorm.Config()}
        return CrossAttention.Config(input_dim=WIDTH, num_heads=4, num_kv_heads=2, memory_dim=12, **norms)

    def inputs(self, key: jax.Array) -> tuple[Any, ...]:
        x, sequences = super().inputs(key)
        memory = jax.random.normal(jax.random.key(5), (2, 4, 12)).astype(x.dtype)
        return x, sequences._replace(memory=memory, memory_segment_ids=jnp.array([[1, 2, 2, 0]] * 2))

    unsupported = {"bfloat16": "the memory given here is fp32"}


class TestLearnedPositions(LayerConformance):
    unsupported = {"bfloat16": "takes no activations"}

    def config(self) -> sm.Config:
        return LearnedPositions.Config(output_dim=8, max_length=6)

    def inputs(self, key: jax.Array) -> tuple[Any, ...]:
        return (jnp.array([[0, 1, 2, 3, 4, 5]]),)
