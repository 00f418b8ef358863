"""One step of training reaches every parameter of a family's small model, and lowers its loss."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import kanawa as kn
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import Batch
from kanawa_layers.convert.families import model_config

FIXTURES = Path(__file__).parent.parent / "fixtures"
DAILY = ("qwen3_next",)
FAMILIES = ["qwen3_next", "qwen3_5", "gemma4_e", "kimi_k2", "glm4_moe", "gpt_oss"]


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in DAILY else pytest.mark.nightly) for n in FAMILIES])
def test_a_step_reaches_every_parameter(name):
    model = model_config(json.loads((FIXTURES / name / "config.json").read_text())).build()
    batch = Batch.of_tokens(jnp.arange(65)[None] * jnp.arange(1, 5)[:, None] % 61)
    params, state = kn.initialize(model, jax.random.key(0)), kn.initial_state(model, jax.random.key(0))

    @jax.jit
    def step(params):
        def loss(params):
            return kn.functional(model)(params, state, batch, key=jax.random.key(1), train=True)[1].total_loss()

        value, grads = jax.value_and_grad(loss)(params)
        scale = 0.1 / jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
        return value, grads, jax.tree.map(lambda p, g: p - scale * g, params, grads)

    before, grads, params = step(params)
    unreached = [
        path for path, grad in flatten_paths(grads).items() if not jnp.any(grad) or not jnp.all(jnp.isfinite(grad))
    ]
    assert not unreached
    assert step(params)[0] < before
