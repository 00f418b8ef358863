"""N-gram memory: rows follow from the last tokens alone, segments are apart, and padding is nothing."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import Sequences
from kanawa.errors import ConfigError
from kanawa.testing.layer import LayerConformance
from kanawa.testing.modifier import ModifierConformance
from kanawa_layers.convert.families import model_config
from kanawa_layers.recipes.llama import llama
from kanawa_layers.recurrent.causal_conv import CausalConv
from kanawa_layers.recurrent.ngram_memory import NGramMemories, NGramMemory

IDS = jnp.asarray(np.random.default_rng(0).integers(0, 50, (2, 7)), jnp.int32)
FIXTURES = Path(__file__).parent.parent / "fixtures"


def memory(**changes):
    conv = CausalConv.Config(bias=False)
    return NGramMemory.Config(input_dim=16, heads=2, table_size=32, width=4, conv=conv, **changes)


class TestNGramMemory(LayerConformance):
    def config(self):
        return memory()

    def inputs(self, key):
        return jax.random.normal(key, (2, 7, 16)), IDS, Sequences()


class TestNGramMemories(ModifierConformance):
    touches = ("stack", "stack.**", "embedding", "embedding.**")

    def config(self):
        return llama(num_layers=4, input_dim=16, num_heads=2, num_kv_heads=2, hidden_dim=24, vocab_size=50)

    def modifier(self):
        return NGramMemories.Config(layers=(1, 3), table_size=32, width=4).build()


@pytest.fixture(scope="module")
def built():
    module = memory().build(name="layer")
    params = kn.initialize(module, jax.random.key(0))
    call = jax.jit(lambda *inputs: kn.functional(module)(params, {}, *inputs)[0])
    return module, call, jax.random.normal(jax.random.key(1), (2, 7, 16))


def test_rows_are_those_of_a_hash_in_integers(built):
    module, _, _ = built
    recent = np.concatenate([np.zeros((2, 2), int), np.asarray(IDS) + 1], axis=1)
    rows = np.asarray(module._rows(jnp.asarray(recent, jnp.int32), None))
    from kanawa_layers.recurrent.ngram_memory import _multipliers

    factors = [[int(f) for f in row] for row in _multipliers(0, 4, 3)]
    for row in range(2):
        for t in range(7):
            for table in range(4):
                mixed = 0
                for lag in range((2, 3)[table // 2]):
                    mixed ^= int(recent[row, 2 + t - lag]) * factors[table][lag] % 2**32
                mixed = (mixed ^ mixed >> 15) * 0x2C1B3C6D % 2**32
                assert rows[row, t, table] == (mixed ^ mixed >> 12) % 32 + 32 * table
    assert all(factor % 2 for row in factors for factor in row)


def test_packed_segments_equal_rows_of_their_own(built):
    _, call, x = built
    segments = jnp.asarray([[1, 1, 1, 2, 2, 2, 0], [1] * 7])
    packed = call(x, IDS, Sequences(segment_ids=segments))[0]
    np.testing.assert_allclose(packed[:1, :3], call(x[:1, :3], IDS[:1, :3], Sequences())[0], atol=1e-5)
    np.testing.assert_allclose(packed[:1, 3:6], call(x[:1, 3:6], IDS[:1, 3:6], Sequences())[0], atol=1e-5)
    np.testing.assert_allclose(packed[1:], call(x[1:], IDS[1:], Sequences())[0], atol=1e-5)


def test_padded_pieces_with_a_cache_equal_the_whole(built):
    module, call, x = built
    whole = call(x, IDS, Sequences())[0]
    # Rubbish: rows of length 0 must not see it.
    cache = {name: jnp.full(s.shape, 9, s.dtype) for name, s in module.cache_spec(2, "float32").items()}
    done = jnp.zeros(2, jnp.int32)
    for counts in ((3, 1), (1, 3), (3, 2)):
        count = jnp.asarray(counts)
        places = jnp.minimum(done[:, None] + jnp.arange(3)[None], 6)
        real = (jnp.arange(3)[None] < count[:, None]).astype(jnp.int32)
        piece = jnp.take_along_axis(x, places[..., None], 1), jnp.take_along_axis(IDS, places, 1)
        y, cache = call(*piece, Sequences(segment_ids=real, lengths=done), cache)
        for row in range(2):
            np.testing.assert_allclose(
                y[row, : counts[row]], whole[row, done[row] : done[row] + counts[row]], atol=1e-5
            )
        done = done + count


def test_layers_that_are_not_there_are_refused():
    cfg = llama(num_layers=2, input_dim=16, num_heads=2, num_kv_heads=2, hidden_dim=24, vocab_size=50)
    with pytest.raises(ConfigError, match=r"layers \(2,\) of a model of 2 layers, counted from 0"):
        NGramMemories.Config(layers=(2,)).build()(cfg)


@pytest.mark.parametrize("family", ["smollm3", "deepseek_v3"])
def test_a_patterns_and_a_chains_layers_stay_in_order_and_keep_their_names(family):
    cfg = model_config(json.loads((FIXTURES / family / "config.json").read_text()))
    before = set(kn.foreign.table_of(cfg.build()).tensors)
    changed = NGramMemories.Config(layers=(0, 2), table_size=16).build()(cfg.clone())
    added = set(kn.foreign.table_of(changed.build()).tensors) - before
    assert before <= set(kn.foreign.table_of(changed.build()).tensors)
    assert {name.split(".engram")[0] for name in added} == {"model.layers.0", "model.layers.2"}
