"""Parts of encoders, encoder-decoders and image models through the conformance kit."""

import jax
import jax.numpy as jnp
from kanawa.contracts import Sequences
from kanawa.testing.layer import LayerConformance
from kanawa_layers.basic.embedding import TokenTypes
from kanawa_layers.basic.patches import PatchEmbedding
from kanawa_layers.models.masked_head import FirstTokenPooler, HeadTransform
from kanawa_layers.recipes.t5 import t5

MEMORY = jnp.asarray([[[0.1 * (i + j) for j in range(16)] for i in range(5)]] * 2, jnp.float32)


def _decoder():
    return t5(num_layers=2, input_dim=16, num_heads=2, head_dim=8, hidden_dim=24, vocab_size=12).decoder


class TestDecoderTower(LayerConformance):
    """A tower with its shared bias, and cross blocks inside of it."""

    unsupported = {"scan": "a tower isn't a layer of a stack", "bfloat16": "the memory has the stream's dtype"}

    def config(self):
        return _decoder().set(input_dim=16)

    def inputs(self, key):
        segments = jnp.array([[1, 1, 1, 1, 0]] * 2)
        return jax.random.normal(key, (2, 6, 16)), Sequences(memory=MEMORY, memory_segment_ids=segments)


class TestHeadTransform(LayerConformance):
    def config(self):
        return HeadTransform.Config(input_dim=16)

    def inputs(self, key):
        return (jax.random.normal(key, (2, 6, 16)),)


class TestFirstTokenPooler(TestHeadTransform):
    def config(self):
        return FirstTokenPooler.Config(input_dim=16)


class TestPatchEmbedding(LayerConformance):
    def config(self):
        return PatchEmbedding.Config(output_dim=16, patch_size=4)

    def inputs(self, key):
        return (jax.random.normal(key, (2, 8, 12, 3)),)


class TestTokenTypes(LayerConformance):
    unsupported = {"bfloat16": "its input is integers", "scan": "its input is integers"}

    def config(self):
        return TokenTypes.Config(output_dim=16)

    def inputs(self, key):
        return (jax.random.randint(key, (2, 6), 0, 2),)
