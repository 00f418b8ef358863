"""Every policy of the `remat` modifier gives the same gradients; those that offload do so."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from kanawa.arrays.plan import KernelPolicy
from kanawa.kernels import Kernel, Verdict
from kanawa.kernels.matmul import matmul
from kanawa.kernels.matmul.problem import ReferenceMatmul
from kanawa.plugins import PluginHost, host, set_host
from kanawa.plugins.discovery import Entry, Provider, discover
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


class HostMatmul(Kernel):
    """Any kernel beside the reference: its calls are of a primitive that JAX's policies don't know."""

    name = "matmul.cpu.host"
    operation = "matmul"

    def supports(self, problem, device):
        return Verdict(True)

    def forward(self, problem, operands):
        return ReferenceMatmul().forward(problem, operands)


@pytest.fixture
def host_matmul():
    kernels = {HostMatmul.name: f"{__name__}:HostMatmul"}
    entries = tuple(Entry(kind="kernels", name=name, value=value) for name, value in kernels.items())
    found = [*discover(), Provider(name="stranger", version="1.0", entries=entries)]
    old = set_host(PluginHost(discover=lambda: found))
    yield
    set_host(old)


@pytest.mark.usefixtures("host_matmul")
@pytest.mark.parametrize(("name", "saved"), [("dots", 2), ("offload-dots", 2), ("full", 0)])
def test_calls_of_a_matmul_kernel_are_matmuls_to_a_policy(name, saved):
    policy = named_policy(name).build().policy()

    def layer(x, w):
        return jnp.sin(matmul(jnp.tanh(matmul(x, w)), w))

    pins = KernelPolicy(pins=(("matmul", HostMatmul.name),))
    with kn.use_plan(kn.ExecutionPlan(kernels=pins)):
        body = jax.checkpoint(layer, policy=None if policy is True else policy)
        text = str(jax.make_jaxpr(jax.grad(lambda w: jnp.sum(body(jnp.ones((8, 8)), w))))(W[0]))
    # Two forward and three for the gradients, of which ones don't ask; what isn't saved is computed again.
    assert text.count("= kanawa_matmul[") == 5 + 2 - saved
