"""Two towers learn which text belongs to which image, and give zero-shot labels."""

import re

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import ImageTextBatch
from kanawa_layers.models.two_towers import TwoTowers
from kanawa_layers.recipes.clip import two_towers

SIZES = {
    "output_dim": 16, "num_layers": 1, "input_dim": 32, "num_heads": 2, "patch_size": 4, "image_size": 8,
    "text_layers": 1, "text_dim": 16, "text_heads": 2, "vocab_size": 12, "max_length": 5,
}  # fmt: skip
TEXTS = np.array([[1, 2, 11, 0, 0], [3, 4, 5, 11, 0], [6, 11, 0, 0, 0], [7, 8, 9, 10, 11]], np.int32)


def batch():
    colours = np.array([[250, 0, 0], [0, 250, 0], [0, 0, 250], [120, 120, 120]], np.uint8)
    noise = np.random.default_rng(0).integers(0, 6, (4, 8, 8, 3)).astype(np.uint8)
    return ImageTextBatch(colours[:, None, None] + noise, TEXTS, (TEXTS > 0).astype(np.int32), np.array([1.0, 1, 1, 1]))


@pytest.mark.parametrize("kind", [{"end_id": 11}, {"siglip": True, "output_dim": 32}], ids=["clip", "siglip"])
def test_pairs_are_learned_and_labels_found_without_training_for_them(kind):
    model = two_towers(**{**SIZES, **kind}).build()
    params = jax.jit(lambda k: kn.initialize(model, k))(jax.random.key(0))

    @jax.jit
    def step(params, rate):
        def loss(p):
            return kn.functional(model)(p, {}, batch(), key=jax.random.key(1), train=True)[1].total_loss()

        value, grads = jax.value_and_grad(loss)(params)
        moved = jax.tree.map(lambda p, g: p - rate * g / (1e-6 + jnp.sqrt(jnp.mean(g * g))), params, grads)
        return moved, value, grads

    after, first, grads = step(params, 0.004)
    silent = {path for path, g in flatten_paths(grads).items() if not float(jnp.abs(g).max()) > 0}
    assert not silent
    for i in range(60):
        after, last, _ = step(after, 0.004 * 0.97**i)
    assert float(last) < 0.3 * float(first)
    scores = jax.jit(lambda p: kn.functional(model, "predict")(p, {}, TEXTS, batch().images[::-1])[0])(after)
    np.testing.assert_array_equal(jnp.argmax(scores, axis=1), [3, 2, 1, 0])


def test_zero_shot_accuracy_is_that_of_the_nearest_label_where_evaluation_has_labels():
    model = two_towers(**SIZES, end_id=11).build()
    params = jax.jit(lambda k: kn.initialize(model, k))(jax.random.key(0))
    labels = np.broadcast_to(TEXTS[:3], (4, 3, 5))
    rows = batch()._replace(label_ids=labels, target_ids=np.array([0, 2, 1, -1], np.int32))
    cosines, _ = kn.functional(model, "predict")(params, {}, TEXTS[:3], rows.images)
    right = np.argmax(np.asarray(cosines), axis=1)[:3] == rows.target_ids[:3]
    out = jax.jit(lambda b: kn.functional(model)(params, {}, b)[1])(rows)
    found = {path: metric for path, metric in out.metrics.items() if "zero_shot" in path}
    (metric,) = found.values()
    assert (float(metric.total), float(metric.weight)) == (right.sum(), 3), "a picture without a label doesn't count"
    trained = kn.functional(model)(params, {}, rows, key=jax.random.key(1), train=True)[1]
    assert not [path for path in trained.metrics if "zero_shot" in path]


@pytest.mark.parametrize(
    ("stop_ids", "vocab_size", "problem"),
    [
        ((11,), 12, ""),
        ((2,), 12, r"end_id is 11, and texts of the data end with \[2\]"),
        ((11,), 13, "13 token ids"),
    ],
)
def test_texts_of_another_tokenizer_are_refused(stop_ids, vocab_size, problem):
    class Texts:
        tokenizer = type("Ends", (), {"stop_ids": stop_ids})

    Texts.vocab_size = vocab_size
    found = TwoTowers.data_problem(two_towers(**SIZES, end_id=11), Texts)
    assert re.search(problem, found) and bool(problem) == bool(found)
