"""Losses of a batch over eight devices equal those of one, gradients too, and no device has all logits."""

import dataclasses

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from kanawa_layers.losses.contrastive import sigmoid_contrastive, softmax_contrastive
from kanawa_layers.losses.passed_around import sigmoid_contrastive_over_devices, softmax_contrastive_over_devices

ROWS, WIDTH = 32, 6
NUMBERS = jnp.asarray(7.0), jnp.asarray(-3.0)


def unit(seed):
    x = np.random.default_rng(seed).standard_normal((ROWS, WIDTH))
    return jnp.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), jnp.float32)


LEFT, RIGHT, VALID = unit(0), unit(1), jnp.arange(ROWS) < 27


def softmax(left, right, scale, bias, valid=VALID):
    return softmax_contrastive_over_devices(left, right, scale + 0 * bias, valid)


def sigmoid(left, right, scale, bias, valid=VALID):
    return sigmoid_contrastive_over_devices(left, right, scale, bias, valid)


PLAIN = {softmax: lambda x, y, s, b: softmax_contrastive(x, y, s), sigmoid: sigmoid_contrastive}


def both(loss):
    def run(*args):
        total = lambda *inner: jnp.sum(jnp.where(VALID, loss(*inner), 0.0))  # noqa: E731
        return loss(*args), jax.grad(total, argnums=(0, 1, 2, 3))(*args)

    return jax.jit(run)


@pytest.mark.parametrize("loss", PLAIN)
def test_on_one_device_it_is_the_plain_loss_of_the_valid_pairs(loss):
    actual = both(loss)(LEFT, RIGHT, *NUMBERS)[0][:27]
    np.testing.assert_allclose(actual, PLAIN[loss](LEFT[:27], RIGHT[:27], *NUMBERS), rtol=1e-5)


@pytest.mark.parametrize("loss", PLAIN)
@pytest.mark.parametrize("shape", [{"data": 8}, {"replica": 2, "data": 4}])
def test_on_eight_devices_it_is_the_same(loss, shape):
    alone = both(loss)(LEFT, RIGHT, *NUMBERS)
    mesh, names = jax.make_mesh(tuple(shape.values()), tuple(shape), (AxisType.Auto,) * len(shape)), tuple(shape)
    plan = dataclasses.replace(kn.current_plan(), activation_rules=(("batch", names),))
    with jax.set_mesh(mesh), kn.use_plan(plan):
        rows = [jax.device_put(x, NamedSharding(mesh, PartitionSpec(names))) for x in (LEFT, RIGHT)]
        run = both(loss)
        spread = run(*rows, *NUMBERS)
        text = run.lower(*rows, *NUMBERS).compile().as_text()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), spread, alone)
    assert "collective-permute" in text
    assert f"f32[{ROWS},{ROWS}]" not in text and f"f32[{ROWS // 8},{ROWS}]" not in text
