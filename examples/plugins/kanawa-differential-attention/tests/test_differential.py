"""The variant passes the kit, cached decoding included, and equals the paper's formula."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from kanawa.contracts import CacheView, Sequences
from kanawa.kernels import CAUSAL
from kanawa.testing.mixer import MixerConformance
from kanawa.testing.modifier import ModifierConformance
from kanawa.testing.plugin import PluginConformance
from kanawa_differential_attention.differential import Differential, UseDifferential
from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.recipes.llama import llama_tiny


class TestPlugin(PluginConformance):
    distribution = "kanawa-differential-attention"


class TestDifferentialAttention(MixerConformance):
    unsupported = {"foreign names": "no checkpoint has been published under names we know"}

    def config(self):
        return GroupedQueryAttention.Config(
            input_dim=16, num_heads=4, num_kv_heads=2, dot_product=Differential.Config()
        )


class TestModifier(ModifierConformance):
    touches = ("stack.layer.attention.dot_product", "stack.layer.attention.dot_product.**")

    def modifier(self):
        return UseDifferential.Config().build()

    def config(self):
        return llama_tiny()


def test_it_is_the_papers_difference():
    layer = Differential.Config(scale=0.5, logit_cap=None).build(name="layer")
    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 3, 2, 4))
    positions = jnp.arange(3)[None]
    params = {"amount": jnp.asarray(0.25)}
    keys = CacheView(None, k, v)
    out, _ = kn.functional(layer)(params, {}, q, keys, CAUSAL, Sequences(), positions)
    weights = []
    for head in (0, 1):
        scores = 0.5 * np.einsum("td,sd->ts", q[0, :, head], k[0, :, head])
        scores = np.where(np.tri(3, dtype=bool), scores, -np.inf)
        weights.append(np.exp(scores) / np.exp(scores).sum(-1, keepdims=True))
    amount = np.exp(0.25) - 1 + 0.8
    both = np.concatenate([v[0, :, 0], v[0, :, 1]], axis=-1)
    difference = (weights[0] - amount * weights[1]) @ both
    expected = 0.2 * difference / np.sqrt((difference**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(out.reshape(3, 8), expected, rtol=1e-4, atol=1e-5)
