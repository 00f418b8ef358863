"""A backward cut in two gives the gradients of the whole, and each part has only its own matmuls."""

import jax
import jax.numpy as jnp
import numpy as np
from kanawa_parallel.pipeline.two_backwards import in_two

SIZE = 4


def layer(params, scale, x):
    # Under a loop of one and a checkpoint, as a stack runs its layers.
    def body(x, weights):
        up, down = weights
        return x + jax.nn.silu(x @ up) @ down * scale, None

    return jax.lax.scan(jax.checkpoint(body), x, jax.tree.map(lambda w: w[None], params))[0]


def backward(params, scale, x, dy):
    _, pull = jax.vjp(lambda p, x: layer(p, scale, x), params, x)
    return pull(dy)


def arguments():
    keys = jax.random.split(jax.random.key(0), 4)
    up, down, x, dy = (jax.random.normal(key, (SIZE, SIZE)) for key in keys)
    return (up, down), jnp.float32(0.5), x, dy


def matmuls(function, *args):
    return str(jax.make_jaxpr(function)(*args)).count("dot_general[")


def test_both_parts_give_the_gradients_of_the_whole():
    args = params, scale, x, dy = arguments()
    two = in_two(backward, params, scale, x, dy)
    dx, rest = jax.jit(two.of_inputs)(*args)
    grads = jax.jit(two.of_weights)(params, scale, rest)
    wanted, wanted_dx = backward(*args)
    np.testing.assert_allclose(dx, wanted_dx, rtol=1e-5, atol=1e-6)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6), grads, wanted)


def test_matmuls_of_weights_are_in_the_second_part_alone():
    args = params, scale, *_ = arguments()
    two = in_two(backward, *args)
    _, rest = two.of_inputs(*args)
    # The first matmul forward again, and two of inputs; the second forward matmul serves no gradient.
    assert matmuls(two.of_inputs, *args) == 3
    assert matmuls(two.of_weights, params, scale, rest) == 2
