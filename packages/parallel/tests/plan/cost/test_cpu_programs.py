"""Programs compiled for this CPU, with scan, remat and accumulation, against counts by hand."""

import jax
import jax.numpy as jnp
import pytest
from kanawa.composition.target import parse_target
from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.cost.machine import Machine
from kanawa_parallel.plan.cost.timing import Timing
from kanawa_parallel.plan.read.hlo import parse_module

LAYERS, MICROBATCHES, ROWS, WIDTH, HIDDEN = 5, 4, 16, 32, 64
MATMUL = 2 * ROWS * WIDTH * HIDDEN


def timing_of(function, *arguments):
    compiled = jax.jit(function).lower(*arguments).compile()
    device = parse_target("cpu").device
    return Timing(parse_module(compiled.as_text()), {}, Machine(device, Links.of_devices(device, None, 1)))


def layer(x, w):
    return x + jnp.tanh(x @ w["up"]) @ w["down"], None


def loss(weights, x, remat):
    body = jax.checkpoint(layer) if remat else layer
    return jnp.sum(jax.lax.scan(body, x, weights)[0])


@pytest.fixture(scope="module")
def weights():
    shapes = {"up": (LAYERS, WIDTH, HIDDEN), "down": (LAYERS, HIDDEN, WIDTH)}
    return {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(("remat", "matmuls"), [(False, 6), (True, 7)])
def test_gradients_of_a_scan(weights, remat, matmuls):
    """Two matmuls forward and four backward; remat repeats the first, whose result the second's gradient needs."""
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    timing = timing_of(lambda w, x: jax.grad(loss)(w, x, remat), weights, x)
    assert timing.total_flops() == pytest.approx(matmuls * LAYERS * MATMUL, rel=0.02)


def test_accumulation_multiplies_the_loops_inside_it(weights):
    def accumulated(w, batch):
        def micro(total, x):
            return jax.tree.map(jnp.add, total, jax.grad(loss)(w, x, True)), None

        return jax.lax.scan(micro, jax.tree.map(jnp.zeros_like, w), batch)[0]

    batch = jax.ShapeDtypeStruct((MICROBATCHES, ROWS, WIDTH), jnp.float32)
    timing = timing_of(accumulated, weights, batch)
    assert timing.total_flops() == pytest.approx(7 * MICROBATCHES * LAYERS * MATMUL, rel=0.02)


def test_bytes_of_a_slice_are_not_those_of_the_stack():
    """Each layer's weights are sliced out and read once; the whole stack in every iteration would be 40 times that."""
    layers = 40
    shapes = {"up": (layers, WIDTH, HIDDEN), "down": (layers, HIDDEN, WIDTH)}
    w = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    timing = timing_of(lambda w, x: loss(w, x, False), w, x)
    stack = layers * 2 * WIDTH * HIDDEN * 4
    assert stack < sum(item.bytes for item in timing.work()) < 8 * stack
