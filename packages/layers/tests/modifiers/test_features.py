"""Features in one file each: with one modifier a small model learns, and decodes what a full pass computes."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.composition.modifiers import configured, parse_modifier
from kanawa.contracts import Batch, Sequences
from kanawa_layers.recipes.llama import llama

#: Each modifier, and a parameter that only it adds.
FEATURES = {
    "multi-token": "loss.depths[0].join.weight",
    "hyper-connections:streams=2,iterations=3": "stack.stack.layer.attention_connection.map",
    "ngram-memory:layers=[0],table_size=64,width=8": "stack.stacks[0].layer.memory.table",
    "mixer:kind=kimi-delta-attention": "stack.layer.attention.decay_up.weight",
    "sparse-attention:top_k=4,heads=2,head_dim=8,rope_dim=4": "stack.layer.attention.indexer.query.weight",
}
ROWS, LENGTH = 3, 9


class Experiment(kn.Config):
    model: kn.Module.Config = kn.REQUIRED


def plain():
    return llama(num_layers=1, input_dim=16, num_heads=2, num_kv_heads=1, hidden_dim=24, vocab_size=32)


@pytest.fixture(scope="module", params=FEATURES)
def feature(request):
    model = configured(*parse_modifier(request.param))(Experiment(model=plain())).model.build()
    return model, FEATURES[request.param]


def test_the_loss_falls_and_every_gradient_is_finite(feature):
    model, added = feature
    # Every row counts up from its own start.
    batch = Batch.of_tokens((jnp.arange(LENGTH + 1)[None] + jnp.arange(ROWS)[:, None] * 7) % 32)

    def loss(params):
        return kn.functional(model)(params, {}, batch, key=jax.random.key(1), train=True)[1].total_loss()

    @jax.jit
    def train(key):
        def step(params, _):
            value, grads = jax.value_and_grad(loss)(params)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), (value, grads)

        return jax.lax.scan(step, kn.initialize(model, key), None, length=10)[1]

    losses, grads = train(jax.random.key(0))
    assert losses[-1] < 0.9 * losses[0], losses
    flat = flatten_paths(grads)
    assert all(np.isfinite(leaf).all() for leaf in flat.values())
    assert np.abs(flat[added]).max() > 0


#: Multi-token prediction changes training alone, and test_mixers.py decodes with each mixer.
@pytest.mark.parametrize(
    "feature", [name for name in FEATURES if not name.startswith(("multi-token", "mixer"))], indirect=True
)
def test_cached_decoding_equals_the_full_pass(feature):
    model, _ = feature
    params = jax.jit(lambda key: kn.initialize(model, key))(jax.random.key(3))
    tokens = jax.random.randint(jax.random.key(4), (ROWS, LENGTH), 0, 32)
    full = jax.jit(lambda p: kn.functional(model, "predict")(p, {}, tokens)[0])(params)
    spec = model.cache_spec(ROWS, LENGTH, "float32")
    cache = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), spec, is_leaf=lambda x: isinstance(x, kn.ParamSpec))

    @jax.jit
    def piece(tokens, lengths, cache):
        return kn.functional(model, "decode")(params, {}, tokens, Sequences(lengths=lengths), cache)[0]

    done, parts = 0, []
    for size in (6, 1, 1, 1):
        logits, cache = piece(tokens[:, done : done + size], jnp.asarray(done), cache)
        parts.append(logits)
        done += size
    np.testing.assert_allclose(jnp.concatenate(parts, 1), full, rtol=1e-5, atol=1e-5)
