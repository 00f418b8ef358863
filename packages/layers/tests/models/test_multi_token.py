"""Multi-token prediction: each depth sees the right tokens, and nothing past a segment's end counts."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import Batch, Sequences
from kanawa.errors import ConfigError
from kanawa.testing.modifier import ModifierConformance
from kanawa_layers.models.multi_token import PredictAhead
from kanawa_layers.recipes.llama import llama
from kanawa_layers.stack.hyper_connections import HyperConnections


def tiny():
    return llama(num_layers=1, input_dim=16, num_heads=2, num_kv_heads=2, hidden_dim=24, vocab_size=20)


class TestPredictAhead(ModifierConformance):
    touches = ("loss", "loss.**")

    def config(self):
        return tiny()

    def modifier(self):
        return PredictAhead.Config(depth=2).build()


def test_terms_equal_those_computed_token_by_token():
    model = PredictAhead.Config(depth=2, strength=0.6).build()(tiny()).build()
    params = kn.initialize(model, jax.random.key(0))
    rng = np.random.default_rng(0)
    inputs, targets = (jnp.asarray(rng.integers(1, 20, (2, 8)), jnp.int32) for _ in range(2))
    segments = jnp.asarray([[1, 1, 1, 1, 2, 2, 2, 0], [1] * 8])
    positions = jnp.asarray([[0, 1, 2, 3, 0, 1, 2, 0], [*range(8)]])
    weights = jnp.where(segments > 0, 1.0, 0.0).at[1, 3].set(0.0)
    # What a segment's last position predicts is its own business: the next token of the row isn't shown by it.
    batch = Batch(inputs, targets, positions, segments, weights)
    _, outputs = kn.functional(model)(params, {}, batch, train=True)

    def run(method, *args):
        return kn.functional(model, method)(params, {}, *args)[0]

    sequences = Sequences(positions=positions, segment_ids=segments)
    embedding, norm = model.embedding, model.norm
    x = run("embed", inputs, sequences)
    x = kn.functional(model.stack)(params["stack"], {}, x, sequences)[0][0]
    x = kn.functional(norm)(params["norm"], {}, x)[0]
    for ahead in (1, 2):
        depth = params["loss"][f"depths[{ahead - 1}]"]
        module = model.loss.depths[ahead - 1]
        tokens = jnp.asarray([[row[min(i + ahead - 1, 7)] for i in range(8)] for row in targets])
        embedded = kn.functional(embedding)(params["embedding"], {}, tokens)[0]
        x, normed = kn.functional(module)(depth, {}, x, embedded, sequences)[0]
        logs = jax.nn.log_softmax(normed @ params["head"]["kernel"])
        total = count = 0.0
        for row in range(2):
            for i in range(8 - ahead):
                if segments[row, i] == segments[row, i + ahead]:
                    total -= float(logs[row, i, targets[row, i + ahead]] * weights[row, i + ahead])
                    count += float(weights[row, i + ahead])
        term = outputs.losses[f"loss.tokens_ahead_{ahead + 1}"]
        assert float(term.weight) == count
        np.testing.assert_allclose(term.total, total, rtol=1e-4)
        assert float(term.coefficient) == 0.3
    assert outputs.primary_loss() == "loss.main.cross_entropy"


def test_outside_of_training_it_is_the_main_loss():
    plain, ahead = tiny().build(), PredictAhead.Config().build()(tiny()).build()
    params = kn.initialize(ahead, jax.random.key(0))
    batch = Batch.of_tokens(jnp.arange(10)[None])
    losses = [kn.functional(m)(params, {}, batch)[1].total_loss() for m in (plain, ahead)]
    assert float(losses[0]) == float(losses[1])


def test_a_block_of_several_streams_is_refused():
    with pytest.raises(ConfigError, match="width is 64 where the model's is 16: apply it before"):
        PredictAhead.Config().build()(HyperConnections.Config().build()(tiny()))
