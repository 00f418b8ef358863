"""ViT: patches are a convolution, images are learned, and pixels are normalised by the model."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import ImageBatch
from kanawa.errors import KanawaError
from kanawa_layers.basic.patches import PatchEmbedding
from kanawa_layers.basic.pixels import PixelNorm
from kanawa_layers.basic.pooling import MeanPooling
from kanawa_layers.models.own_proportions import at_places
from kanawa_layers.recipes.vit import vit


def images(count):
    return jnp.asarray(np.random.default_rng(0).standard_normal((count, 8, 12, 3)), jnp.float32)


def test_patches_are_a_convolution_with_a_stride_of_its_width():
    module = PatchEmbedding.Config(output_dim=5, patch_size=4).build()
    weight = jnp.asarray(np.random.default_rng(1).standard_normal((4, 4, 3, 5)), jnp.float32)
    params = {"projection": {"weight": weight, "bias": jnp.arange(5.0)}}
    actual, _ = kn.functional(module)(params, {}, images(2))
    layout = ("NHWC", "HWIO", "NHWC")
    right = jax.lax.conv_general_dilated(images(2), weight, (4, 4), "VALID", dimension_numbers=layout)
    right = right.reshape(2, 6, 5) + jnp.arange(5.0)[None, None]
    np.testing.assert_allclose(actual, right, atol=1e-4)
    with pytest.raises(KanawaError, match="images of 8 x 12 x 3 can't be cut in patches of 5 x 5 x 3"):
        PatchEmbedding.Config(output_dim=5, patch_size=5).build().forward(images(1))


def test_images_are_learned_and_padding_counts_for_nothing():
    sizes = {"num_layers": 1, "input_dim": 16, "num_heads": 2, "hidden_dim": 24}
    module = vit(**sizes, patch_size=4, image_size=8, num_classes=4).build()
    params = jax.jit(lambda k: kn.initialize(module, k))(jax.random.key(0))
    batch = ImageBatch(images(4)[:, :, :8], jnp.array([0, 3, 1, 2]), jnp.array([1.0, 1.0, 1.0, 0.0]))

    def loss(p, batch):
        outputs = kn.functional(module)(p, {}, batch, key=jax.random.key(1), train=True)[1]
        return outputs.total_loss()

    @jax.jit
    def step(p, batch):
        value, grads = jax.value_and_grad(loss)(p, batch)
        return jax.tree.map(lambda x, g: x - 0.1 * g, p, grads), value

    other = batch._replace(images=batch.images.at[3].set(9.0), target_ids=batch.target_ids.at[3].set(0))
    after, first = step(params, batch)
    assert float(step(params, other)[1]) == pytest.approx(float(first), rel=1e-6)
    for _ in range(9):
        after, last = step(after, batch)
    assert float(last) < float(first) - 0.3


def test_pixels_are_normalised_by_channel_and_floats_are_taken_as_they_are():
    norm = PixelNorm.Config(mean=(0.5, 0.25, 0.0), stddev=(0.5,)).build()
    pixels = jnp.asarray([[[[0, 255, 51]]]], jnp.uint8)
    actual, _ = kn.functional(norm)({}, {}, pixels)
    np.testing.assert_allclose(actual[0, 0, 0], [-1.0, 1.5, 0.4], atol=1e-6)
    np.testing.assert_array_equal(kn.functional(norm)({}, {}, images(1))[0], images(1))
    with pytest.raises(KanawaError, match="mean has 3 numbers; images have 1 channels"):
        kn.functional(norm)({}, {}, pixels[..., :1])


def test_registers_are_tokens_that_the_pooling_does_not_see():
    cfg = vit(num_layers=1, input_dim=16, num_heads=2, patch_size=4, image_size=8, num_classes=4, num_registers=3)
    cfg.set(pooling=MeanPooling.Config())
    module = cfg.build()
    params = kn.initialize(module, jax.random.key(0))
    encoder = kn.functional(module.encoder)
    x, _ = encoder(params["encoder"], {}, images(2)[:, :, :8])
    assert x.shape == (2, 1 + 3 + 4, 16)
    logits, _ = kn.functional(module, "predict")(params, {}, images(2)[:, :, :8])
    head = params["head"]
    np.testing.assert_allclose(logits, x[:, 4:].mean(1) @ head["weight"] + head["bias"][None], atol=1e-5)
    # Patches attend to them, so that they are trained.
    changed = {**params["encoder"], "registers": -params["encoder"]["registers"]}
    assert jnp.abs(encoder(changed, {}, images(2)[:, :, :8])[0][:, 4:] - x[:, 4:]).max() > 1e-3


def test_a_classifier_needs_something_to_classify_by_and_a_name_for_each_class():
    cfg = vit(num_layers=1, input_dim=16, num_heads=2, image_size=16, num_classes=3)
    cfg.encoder.set(class_token=False)
    cfg.set(class_names=("cat", "dog"))
    assert cfg.check() == [
        "encoder has no class token, and pooling is None; set pooling=MeanPooling.Config()",
        "class_names has 2 names for 3 classes",
    ]


def test_flops_are_those_that_others_count():
    # 17.58 billion multiplications and additions (timm's and torchvision's figure of ViT-B/16 at 224 pixels).
    model = kn.component("models", "vit-b-16")().build()
    assert model.flops_per_row({"images": (224, 224, 3)}) / 2 == pytest.approx(17.58e9, rel=2e-3)


SMALL = {"num_layers": 1, "input_dim": 16, "num_heads": 2, "hidden_dim": 24, "patch_size": 4, "num_classes": 4}


def laid(picture, side):
    """Returns patches of 4 pixels of a picture [H, W, C], one after another in a square of `side` pixels, then 9s."""
    rows, columns = (length // 4 for length in picture.shape[:2])
    cut = picture.reshape(rows, 4, columns, 4, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 4, 4, 3)
    every = np.full((side * side // 16, 4, 4, 3), 9.0, np.float32)
    every[: len(cut)] = cut
    return every.reshape(side // 4, side // 4, 4, 4, 3).transpose(0, 2, 1, 3, 4).reshape(side, side, 3)


def test_pictures_of_several_proportions_are_what_each_would_be_with_positions_resized_to_it():
    module = vit(**SMALL, image_size=16, num_registers=2).build()
    params = jax.jit(lambda k: kn.initialize(module, k))(jax.random.key(0))
    rng, grids = np.random.default_rng(0), [(2, 5), (4, 4), (7, 1)]
    pictures = [rng.standard_normal((4 * rows, 4 * columns, 3)).astype(np.float32) for rows, columns in grids]
    batch = jnp.asarray(np.stack([laid(picture, 16) for picture in pictures]))
    predict = kn.functional(module, "predict")
    together, _ = predict(params, {}, batch, jnp.asarray(grids))
    table = params["encoder"]["positions"]["weight"]
    for one, (rows, columns), picture in zip(together, grids, pictures, strict=True):
        resized = jax.image.resize(table[1:].reshape(4, 4, 16), (rows, columns, 16), "linear", antialias=False)
        own = jax.tree.map(lambda leaf: leaf, params)
        own["encoder"]["positions"]["weight"] = jnp.concatenate([table[:1], resized.reshape(-1, 16)])
        alone = vit(**SMALL, image_size=16, num_registers=2)
        alone.encoder.positions.set(max_length=rows * columns + 1)
        expected, _ = kn.functional(alone.build(), "predict")(own, {}, jnp.asarray(picture[None]))
        np.testing.assert_allclose(one, expected[0], atol=1e-5)
    square = at_places(table[None], jnp.array([[4, 4]]), 1)
    np.testing.assert_allclose(square, table[None], atol=1e-6)
