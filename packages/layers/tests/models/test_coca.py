"""CoCa learns which text belongs to which picture, and writes it."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import ImageTextBatch
from kanawa.errors import ConfigError
from kanawa_layers.recipes.coca import coca

SIZES = {
    "output_dim": 16, "num_layers": 1, "input_dim": 32, "num_heads": 2, "patch_size": 4, "image_size": 8,
    "text_layers": 1, "text_dim": 16, "text_heads": 2, "vocab_size": 12, "max_length": 5, "end_id": 11,
    "num_queries": 3,
}  # fmt: skip
TEXTS = np.array([[1, 2, 11, 0, 0], [3, 4, 5, 11, 0], [6, 11, 0, 0, 0], [7, 8, 9, 10, 11]], np.int32)


def batch():
    colours = np.array([[250, 0, 0], [0, 250, 0], [0, 0, 250], [120, 120, 120]], np.uint8)
    noise = np.random.default_rng(0).integers(0, 6, (4, 8, 8, 3)).astype(np.uint8)
    return ImageTextBatch(colours[:, None, None] + noise, TEXTS, (TEXTS > 0).astype(np.int32), np.ones(4, np.float32))


def built():
    model = coca(**SIZES).build()
    return model, jax.jit(lambda k: kn.initialize(model, k))(jax.random.key(0))


def test_captions_and_pairs_are_learned_together():
    model, params = built()

    @jax.jit
    def step(params, rate):
        def loss(p):
            return kn.functional(model)(p, {}, batch(), key=jax.random.key(1), train=True)[1].total_loss()

        grads = jax.grad(loss)(params)
        moved = jax.tree.map(lambda p, g: p - rate * g / (1e-6 + jnp.sqrt(jnp.mean(g * g))), params, grads)
        return moved, grads

    silent = {path for path, g in flatten_paths(step(params, 0.0)[1]).items() if not float(jnp.abs(g).max()) > 0}
    assert not silent
    for i in range(80):
        params, _ = step(params, 0.006 * 0.97**i)
    images = batch().images[::-1]
    caption = jax.jit(lambda p: kn.functional(model, "caption")(p, {}, images, 5)[0])
    np.testing.assert_array_equal(caption(params), np.where((TEXTS > 0) & (TEXTS < 11), TEXTS, -1)[::-1])
    recognised = kn.functional(model, "recognise")(params, {}, batch()._replace(images=images))[0]
    np.testing.assert_array_equal(recognised, [3, 2, 1, 0])


def test_a_token_is_predicted_from_those_before_it_and_the_picture_alone():
    model, params = built()
    predict = jax.jit(lambda *inputs: kn.functional(model, "predict")(params, {}, *inputs)[0])
    images, changed = batch().images, TEXTS.copy()
    changed[:, 2] = (changed[:, 2] + 1) % 11
    before, after = predict(TEXTS, images), predict(changed, images)
    np.testing.assert_allclose(before[:, :3], after[:, :3], atol=1e-5)
    assert float(jnp.abs(before[:, 3:] - after[:, 3:]).max(axis=(1, 2)).min()) > 1e-3
    assert float(jnp.abs(before - predict(TEXTS, images[::-1])).min(axis=(1, 2)).max()) > 0


def test_texts_without_an_end_are_refused():
    cfg = coca(**SIZES)
    cfg.towers.text.set(end_id=None)
    with pytest.raises(ConfigError, match=r"towers\.text\.end_id is None; captions need an end"):
        cfg.build()
