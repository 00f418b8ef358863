"""ResNet in training: statistics of a batch on several devices are those of one, and residual sums are as published."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from kanawa.contracts import ImageBatch
from kanawa_layers.recipes.resnet import resnet, resnet_50

TINY = {"depths": (1, 1), "widths": (8, 16), "bottleneck": True, "stem_dim": 4, "num_classes": 3, "image_size": 24}


@pytest.fixture(scope="module")
def built():
    model = resnet(**TINY).build()
    return model, kn.initialize(model, jax.random.key(0)), kn.initial_state(model, jax.random.key(0))


def step(model):
    def run(params, state, batch):
        _, outputs = kn.functional(model)(params, state, batch, key=jax.random.key(0), train=True)
        return outputs.total_loss(), outputs.state

    return jax.jit(run)


def test_statistics_over_a_sharded_batch_are_those_of_one_device(built):
    model, params, state = built
    chance = np.random.default_rng(0)
    images = chance.integers(0, 256, (8, 24, 24, 3)).astype(np.uint8)
    batch = ImageBatch(images, np.arange(8, dtype=np.int32) % 3, np.ones(8, np.float32))
    devices = jax.devices()[:4]
    if len(devices) < 4:
        pytest.skip("one device only")
    mesh = jax.make_mesh((4,), ("data",), devices=devices)
    rows = jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, PartitionSpec("data"))), batch)
    (loss, alone), (same, spread) = (step(model)(params, state, b) for b in (batch, rows))
    assert float(loss) == pytest.approx(float(same), rel=1e-5)
    # A stem, and of each stage three convolutions and a shortcut.
    assert len(alone) == 2 * 9 and set(alone) == set(spread)
    for path, value in alone.items():
        np.testing.assert_allclose(spread[path], value, rtol=2e-5, atol=1e-6, err_msg=path)
    # The first layer's by hand: the mean of its own convolution, a tenth of the way.
    pixels = (images / 255.0 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    convolved = jax.lax.conv_general_dilated(
        jnp.asarray(pixels, jnp.float32), params["encoder"]["stem"]["convolution"]["weight"], (2, 2),
        ((3, 3), (3, 3)), dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip
    mean = alone["encoder.stem.norm.mean"]
    np.testing.assert_allclose(mean, 0.1 * np.mean(convolved, (0, 1, 2)), rtol=1e-4, atol=1e-6)


def test_flops_and_shapes_are_those_of_the_published_network():
    cfg = resnet_50()
    assert cfg._target.row_shapes(cfg) == {"images": (224, 224, 3)}
    # 4.1e9 multiplications and additions: as counted for PyTorch's of the same shape.
    assert cfg.build().flops_per_row({"images": (224, 224, 3)}) == pytest.approx(2 * 4.09e9, rel=0.01)
