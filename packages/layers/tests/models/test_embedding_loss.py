"""The loss of embeddings is the contrastive loss of each segment's pooled vector, wherever packing put the segments."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import PreferenceBatch
from kanawa.errors import ConfigError
from kanawa_layers.losses.contrastive import softmax_contrastive
from kanawa_layers.models.embedding_loss import EmbeddingLoss, as_embedder
from kanawa_layers.recipes.bert import bert
from kanawa_layers.recipes.t5 import t5

SIZES = {"num_layers": 1, "input_dim": 16, "num_heads": 2, "vocab_size": 40, "max_length": 12}
#: Two pairs in the first row, one in the second, which has room for a second one.
SEGMENTS = np.array([[1, 1, 2, 2, 2, 3, 4, 4, 0, 0], [1, 1, 1, 1, 2, 2, 0, 0, 0, 0]], np.int32)
LABELS = np.array([[1, 1], [1, 0]], np.float32)


def batch(ids, segments=SEGMENTS, labels=LABELS):
    places = np.stack([np.arange(len(row)) - np.searchsorted(row + 99 * (row == 0), row) for row in segments])
    zeros = np.zeros(segments.shape, np.float32)
    return PreferenceBatch(ids, ids, places.astype(np.int32) * (segments > 0), segments, zeros, labels)


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(0).integers(1, 40, SEGMENTS.shape).astype(np.int32)


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_it_is_the_contrastive_loss_of_texts_read_alone(ids, pooling):
    model = as_embedder(bert(**SIZES), pooling, 5.0).build()
    params = kn.initialize(model, jax.random.key(0))
    out = jax.jit(lambda b: kn.functional(model)(params, {}, b)[1])(batch(ids))
    sides = ([], [])
    for row in range(2):
        for segment in range(1, int(SEGMENTS[row].max()) + 1):
            own = ids[row][SEGMENTS[row] == segment][None]
            states = np.asarray(kn.functional(model, "states")(params, {}, own)[0])[0]
            vector = {"mean": states.mean(0), "first": states[0], "last": states[-1]}[pooling]
            sides[1 - segment % 2].append(vector)
    left, right = (jnp.asarray(np.stack(side)) for side in sides)
    expected = np.asarray(softmax_contrastive(left, right, 5.0))
    np.testing.assert_allclose(float(out.total_loss()), expected.mean(), rtol=2e-5)
    unit = [np.asarray(x) / np.linalg.norm(np.asarray(x), axis=1, keepdims=True) for x in (left, right)]
    hits = (np.argmax(unit[0] @ unit[1].T, axis=1) == np.arange(3)).sum()
    metric = next(m for path, m in out.metrics.items() if path.endswith("accuracy"))
    assert (float(metric.total), float(metric.weight)) == (hits, 3)


def test_all_parameters_learn_and_a_row_without_pairs_changes_nothing(ids):
    model = as_embedder(bert(**SIZES), "mean", 20.0).build()
    params = kn.initialize(model, jax.random.key(0))

    @jax.jit
    def gradients(rows):
        return jax.grad(lambda p: kn.functional(model)(p, {}, rows, key=jax.random.key(1), train=True)[1].total_loss())(
            params
        )

    grads = gradients(batch(ids))
    assert all(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(grads))
    more = [np.concatenate([x, np.zeros_like(x)]) for x in (ids, SEGMENTS, LABELS)]
    for one, other in zip(*(jax.tree.leaves(g) for g in (grads, gradients(batch(*more)))), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_other_models_are_refused():
    with pytest.raises(ConfigError, match="embed: EncoderDecoderLM.Config is neither an encoder nor a decoder"):
        as_embedder(t5(num_layers=1, input_dim=16, num_heads=2, hidden_dim=16), "mean", 20.0)
    assert isinstance(as_embedder(bert(**SIZES), "mean", 1.0).loss, EmbeddingLoss.Config)
