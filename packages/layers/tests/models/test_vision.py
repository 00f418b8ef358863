"""ViT: patches are a convolution, images are learned."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import ImageBatch
from kanawa.errors import KanawaError
from kanawa_layers.basic.patches import PatchEmbedding
from kanawa_layers.recipes.vit import vit


def images(count):
    return jnp.asarray(np.random.default_rng(0).standard_normal((count, 3, 8, 12)), jnp.float32)


def test_patches_are_a_convolution_with_a_stride_of_its_width():
    module = PatchEmbedding.Config(output_dim=5, patch_size=4).build()
    weight = jnp.asarray(np.random.default_rng(1).standard_normal((3, 4, 4, 5)), jnp.float32)
    params = {"projection": {"weight": weight, "bias": jnp.arange(5.0)}}
    actual, _ = kn.functional(module)(params, {}, images(2))
    right = jax.lax.conv_general_dilated(images(2), jnp.transpose(weight, (3, 0, 1, 2)), (4, 4), "VALID")
    right = right.reshape(2, 5, 6).transpose(0, 2, 1) + jnp.arange(5.0)[None, None]
    np.testing.assert_allclose(actual, right, atol=1e-4)
    with pytest.raises(KanawaError, match="images of 3 x 8 x 12 can't be cut in patches of 3 x 5 x 5"):
        PatchEmbedding.Config(output_dim=5, patch_size=5).build().forward(images(1))


def test_images_are_learned_and_padding_counts_for_nothing():
    sizes = {"num_layers": 1, "input_dim": 16, "num_heads": 2, "hidden_dim": 24}
    module = vit(**sizes, patch_size=4, image_size=8, num_classes=4).build()
    params = jax.jit(lambda k: kn.initialize(module, k))(jax.random.key(0))
    batch = ImageBatch(images(4)[..., :8], jnp.array([0, 3, 1, 2]), jnp.array([1.0, 1.0, 1.0, 0.0]))

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
