"""Every policy of the `remat` modifier gives the same gradients; those that offload do so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from sashimono_parallel.remat import POLICIES, OffloadNames


def loss(w, policy):
    def layer(x, w):
        x = checkpoint_name(x, "layer_input")
        q = checkpoint_name(jnp.tanh(x @ w), "query")
        return jnp.sin(checkpoint_name(q @ w, "attention_projection")), None

    body = layer if policy is None else jax.checkpoint(layer, policy=None if policy is True else policy)
    return jnp.sum(jax.lax.scan(body, jnp.ones((4, 8)), w)[0])


@pytest.mark.parametrize("name", [name for name in POLICIES if "offload" in name])
def test_offloading_changes_no_gradient(name):
    w = jax.random.normal(jax.random.key(0), (2, 8, 8))
    policy = POLICIES[name].build().policy()
    program = jax.jit(jax.grad(lambda w: loss(w, policy)))
    np.testing.assert_allclose(program(w), jax.grad(lambda w: loss(w, None))(w), rtol=1e-5)
    assert "pinned_host" in program.lower(w).as_text()


def test_a_name_is_kept_or_sent_away():
    cfg = OffloadNames.Config(save=("query",), offload=("query", "key"))
    assert cfg.check() == ["'query' is in save and in offload"]
