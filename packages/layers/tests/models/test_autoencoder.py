"""The variational autoencoder: its loss against numpy, its draws by the step's key, and what learning does."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import ImageBatch
from kanawa_layers.recipes.autoencoder_kl import autoencoder_kl

SMALL = {"widths": (8, 8), "depth": 1, "num_groups": 2, "image_size": 8, "kl_weight": 0.1, "scale": 0.5, "shift": 0.25}


@pytest.fixture(scope="module")
def built():
    model = autoencoder_kl(**SMALL).build()
    return model, jax.jit(lambda key: kn.initialize(model, key))(jax.random.key(0))


def rows(count):
    images = np.random.default_rng(0).uniform(-1, 1, (count, 8, 8, 3)).astype(np.float32)
    return ImageBatch(jnp.asarray(images), jnp.zeros(count, jnp.int32), jnp.ones(count))


def loss_of(model, params, batch, key=0, train=False):
    return kn.functional(model)(params, {}, batch, key=jax.random.key(key), train=train)[1]


def test_the_loss_is_the_error_and_the_divergence_by_numpy(built):
    model, params = built
    batch = rows(3)._replace(loss_weights=jnp.array([1.0, 1.0, 0.0]))
    x = np.asarray(batch.images, np.float64)
    latents, _ = kn.functional(model.autoencoder, "moments")(params["autoencoder"], {}, batch.images)
    mean, log_variance = (np.asarray(part, np.float64) for part in latents)
    assert mean.shape == (3, 4, 4, 4)
    back = np.asarray(kn.functional(model, "predict")(params, {}, batch.images)[0], np.float64)
    squares = ((back - x) ** 2).mean((1, 2, 3))[:2].mean()
    # KL(N(mean, s^2) || N(0, 1)) of each latent: log(1 / s) + (s^2 + mean^2) / 2 - 1 / 2.
    s = np.exp(log_variance / 2)
    kl = (-np.log(s) + (s**2 + mean**2) / 2 - 0.5).sum((1, 2, 3))[:2].mean() / x[0].size
    outputs = loss_of(model, params, batch)
    np.testing.assert_allclose(float(outputs.total_loss()), squares + 0.1 * kl, rtol=1e-5)
    np.testing.assert_allclose(float(outputs.metrics["kl"].value()), kl, rtol=1e-4)
    np.testing.assert_allclose(float(outputs.metrics["mean_squares"].value()), squares, rtol=1e-5)


def test_latents_are_drawn_by_the_key_in_training_and_scaled_for_others(built):
    model, params = built
    batch = rows(2)
    drawn = [float(loss_of(model, params, batch, key, train=True).total_loss()) for key in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    own = model.autoencoder
    scaled, _ = kn.functional(own, "encode")(params["autoencoder"], {}, batch.images)
    (mean, _), _ = kn.functional(own, "moments")(params["autoencoder"], {}, batch.images)
    np.testing.assert_allclose(scaled, (mean - 0.25) * 0.5, rtol=1e-6)
    back, _ = kn.functional(own, "decode")(params["autoencoder"], {}, scaled)
    np.testing.assert_allclose(back, kn.functional(model, "predict")(params, {}, batch.images)[0], atol=1e-5)
    assert type(own).picture_shape(own.config, (4, 4, 4)) == (8, 8, 3)


def test_it_learns_to_give_pictures_back(built):
    model, params = built
    batch = rows(4)

    @jax.jit
    def step(p, key):
        loss = lambda q: kn.functional(model)(q, {}, batch, key=key, train=True)[1].total_loss()  # noqa: E731
        value, gradients = jax.value_and_grad(loss)(p)
        return jax.tree.map(lambda x, g: x - 0.05 * g, p, gradients), value

    first = float(loss_of(model, params, batch).metrics["mean_squares"].value())
    for number in range(40):
        params, _ = step(params, jax.random.key(number))
    assert float(loss_of(model, params, batch).metrics["mean_squares"].value()) < 0.8 * first


def test_flops_count_every_convolution(built):
    model, _ = built
    # By hand, two FLOPs a weight and place: 64 places at 8 x 8 and 16 at 4 x 4.
    resnet = 2 * (9 * 8 * 8)
    middle = 2 * resnet + 4 * 8 * 8 + 2 * 8 * 16
    encoder = 64 * (9 * 3 * 8 + resnet) + 16 * (9 * 8 * 8 + resnet + middle + 9 * 8 * 8)
    decoder = 16 * (9 * 4 * 8 + middle + 2 * resnet) + 64 * (9 * 8 * 8 + 2 * resnet + 9 * 8 * 3)
    assert model.flops_per_row({"images": (8, 8, 3)}) == 2 * (encoder + decoder)
