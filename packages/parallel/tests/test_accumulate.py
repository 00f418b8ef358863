"""Accumulated gradients equal those of one large batch, with unequal token counts in the microbatches."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import Batch
from kanawa.errors import ConfigError
from kanawa_parallel.accumulate import Accumulate
from tiny_lm import TinyLM

MODEL = TinyLM.Config().build()
PARAMS = kn.initialize(MODEL, jax.random.key(0))


def loss(params, state, batch, key):
    return kn.functional(MODEL)(params, state, batch, key=key, train=True)[1]


def batch():
    tokens = jax.random.randint(jax.random.key(1), (8, 17), 0, 64)
    weights = jnp.ones((8, 16)).at[:2].set(0).at[3, 5:].set(0)
    return Batch.of_tokens(tokens)._replace(loss_weights=weights)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_equals_one_large_batch(count):
    def whole(p):
        return loss(p, {}, batch(), jax.random.key(0)).total_loss()

    strategy = Accumulate.Config(microbatches=count).build()
    grads, outputs = jax.jit(lambda p, b: strategy.gradients(loss, p, {}, b, jax.random.key(0)))(PARAMS, batch())
    wanted = jax.grad(whole)(PARAMS)
    for path, grad in flatten_paths(grads).items():
        np.testing.assert_allclose(grad, flatten_paths(wanted)[path], rtol=1e-4, atol=1e-7, err_msg=path)
    np.testing.assert_allclose(outputs.total_loss(), whole(PARAMS), rtol=1e-6)
    assert float(outputs.losses["cross_entropy"].weight) == float(batch().loss_weights.sum())


def test_finding_the_weights_costs_no_forward_pass():
    strategy = Accumulate.Config(microbatches=4).build()
    once = Accumulate.Config(microbatches=1).build()

    def flops(s):
        step = jax.jit(lambda p, b: s.gradients(loss, p, {}, b, jax.random.key(0))[0])
        text = step.lower(PARAMS, batch()).compile().as_text()
        return text.count(" dot(")

    # One loop body with one forward and one backward pass, however many microbatches.
    assert flops(strategy) == flops(once)


def test_a_batch_that_does_not_split():
    with pytest.raises(ConfigError, match="a batch of 8 rows can't be split in 3 equal microbatches"):
        Accumulate.Config(microbatches=3).build().gradients(loss, PARAMS, {}, batch(), jax.random.key(0))
