"""Every policy of the `remat` modifier gives the same gradients; those that offload do so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from kanawa.arrays import products
from kanawa.plugins import host
from kanawa_parallel.remat.modifier import named_policy
from kanawa_parallel.remat.policies import OffloadNames

POLICIES = [state.name for state in host().components("remat") if state.distribution == "kanawa-parallel"]
W = jax.random.normal(jax.random.key(0), (2, 8, 8))


def loss(w, policy):
    def layer(x, w):
        x = checkpoint_name(x, "layer_input")
        q = checkpoint_name(jnp.tanh(x @ w), "query")
        return jnp.sin(checkpoint_name(q @ w, "attention_projection")), None

    body = layer if policy in (None, False) else jax.checkpoint(layer, policy=None if policy is True else policy)
    return jnp.sum(jax.lax.scan(body, jnp.ones((4, 8)), w)[0])


def gradient(name):
    policy = named_policy(name).build().policy()
    return jax.grad(lambda w: loss(w, policy))


@pytest.mark.parametrize("name", POLICIES)
def test_policies_that_offload_go_to_the_host_and_back(name):
    text = str(jax.make_jaxpr(gradient(name))(W))
    there, back = (text.count(f"devices=(MemorySpace.{place}") for place in ("Host", "Device"))
    assert there == back
    assert (there > 0) == ("offload" in name)


@pytest.mark.parametrize("name", POLICIES)
def test_every_name_gives_the_same_gradient(name):
    plain = jax.grad(lambda w: loss(w, None))(W)
    np.testing.assert_allclose(jax.jit(gradient(name))(W), plain, rtol=1e-4)


def test_a_name_is_kept_or_sent_away():
    cfg = OffloadNames.Config(save=("query",), offload=("query", "key"))
    assert cfg.check() == ["'query' is in save and in offload"]


@pytest.mark.skipif(not products.available(), reason="no products beside XLA's here")
@pytest.mark.parametrize(("name", "kept"), [("dots", 2), ("offload-dots", 2), ("full", 0)])
def test_products_beside_xla_are_products_to_a_policy_of_products(name, kept):
    """One CPU computes them by a primitive of its own, which JAX's policies over dot_general pass by."""
    policy = named_policy(name).build().policy()

    def layer(x, w):
        return jnp.sin(products.matmul(jnp.tanh(products.matmul(x, w)), w))

    body = jax.checkpoint(layer, policy=None if policy is True else policy)
    text = str(jax.make_jaxpr(jax.grad(lambda w: jnp.sum(body(jnp.ones((8, 8)), w))))(W[0]))
    # Two forward and three for the gradients, of which ones don't ask; what isn't kept is computed again.
    assert text.count("kanawa_matmul") == 5 + 2 - kept
