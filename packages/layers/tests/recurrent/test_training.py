"""Tiny recurrent models learn: ten steps of gradient descent by hand, with a falling loss."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import Batch
from kanawa_layers.modifiers.by_name import Mixer
from kanawa_layers.recipes.llama import llama_tiny
from kanawa_layers.recipes.mamba2 import mamba2_tiny


def swapped() -> kn.Config:
    return Mixer.Config(kind="gated-delta-net").build()(llama_tiny())


@pytest.mark.parametrize("recipe", [mamba2_tiny, swapped], ids=["mamba2-tiny", "llama-tiny-gated-delta-net"])
def test_ten_steps_lower_the_loss(recipe):
    cfg = recipe().set(vocab_size=32, input_dim=48)
    cfg.stack.set(num_layers=2)
    model = cfg.build()
    # Every row counts up from its own start: the next token follows from the last.
    tokens = (jnp.arange(17)[None] + jnp.arange(4)[:, None] * 7) % 32
    batch = Batch.of_tokens(tokens)

    def loss(params):
        return kn.functional(model)(params, {}, batch, train=True)[1].total_loss()

    @jax.jit
    def train(key):
        def step(params, _):
            value, grads = jax.value_and_grad(loss)(params)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

        return jax.lax.scan(step, kn.initialize(model, key), None, length=10)[1]

    losses = np.asarray(train(jax.random.key(0)))
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.8 * losses[0], losses
    assert (np.diff(losses) < 0).sum() >= 8, losses
