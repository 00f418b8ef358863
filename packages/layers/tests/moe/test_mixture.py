"""Mixture of experts against a loop over tokens, and its limits: one expert is the dense layer, nothing is dropped."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import Sequences
from kanawa.errors import ConfigError
from kanawa_layers.feedforward.gated import GatedFeedForward
from kanawa_layers.moe.mixture import MixtureOfExperts
from kanawa_layers.moe.router import TopKRouter

X = jax.random.normal(jax.random.key(0), (2, 7, 8))


def mixture(num_experts, top_k):
    cfg = MixtureOfExperts.Config(
        input_dim=8, hidden_dim=12, num_experts=num_experts, router=TopKRouter.Config(top_k=top_k)
    )
    module = cfg.build(name="moe")
    return module, kn.initialize(module, jax.random.key(1))


def expert(params, index, x):
    p = params["experts"]
    gate = x @ p["gate"][index]
    return (gate / (1 + np.exp(-gate)) * (x @ p["up"][index])) @ p["down"][index]


@pytest.mark.parametrize(("num_experts", "top_k"), [(4, 1), (4, 2), (5, 3), (4, 4)])
def test_against_a_loop_over_tokens(num_experts, top_k):
    module, params = mixture(num_experts, top_k)
    actual, _ = jax.jit(kn.functional(module))(params, {}, X, Sequences())
    arrays = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    for row, token in np.ndindex(2, 7):
        x = np.asarray(X[row, token], np.float64)
        odds = np.exp(x @ arrays["router"]["weight"])
        chosen = np.argsort(-odds)[:top_k]
        weights = odds[chosen] / odds[chosen].sum()
        wanted = sum(w * expert(arrays, i, x) for w, i in zip(weights, chosen, strict=True))
        np.testing.assert_allclose(actual[row, token], wanted, atol=2e-5)


def test_one_expert_is_the_dense_layer():
    module, params = mixture(1, 1)
    dense = GatedFeedForward.Config(input_dim=8, hidden_dim=12).build(name="ff")
    dense_params = {name: {"weight": params["experts"][name][0]} for name in ("gate", "up", "down")}
    actual, _ = jax.jit(kn.functional(module))(params, {}, X, Sequences())
    wanted, _ = kn.functional(dense)(dense_params, {}, X, Sequences())
    np.testing.assert_allclose(actual, wanted, atol=1e-5)


def test_balance_loss_is_one_when_balanced_and_padding_does_not_count():
    module, params = mixture(4, 2)
    params["router"]["weight"] = jnp.zeros((8, 4))
    segments = jnp.array([[1] * 7, [1] * 3 + [0] * 4])
    _, outputs = kn.functional(module)(params, {}, X, Sequences(segment_ids=segments))
    balance = outputs.losses["router.balance_loss"]
    assert float(balance.weight) == 10
    # Equal probabilities: whatever is chosen, importance is uniform, so the loss is exactly 1.
    np.testing.assert_allclose(balance.total / balance.weight, 1.0, rtol=1e-6)
    assert float(outputs.losses["router.z_loss"].coefficient) == 0.001


def test_router_runs_in_fp32_under_bf16():
    module, params = mixture(4, 2)
    plan = kn.ExecutionPlan(precision=kn.Precision(compute="bfloat16"))
    with kn.use_plan(plan):
        text = str(jax.make_jaxpr(kn.functional(module))(params, {}, X.astype("bfloat16"), Sequences()))
    products = [line for line in text.splitlines() if "dot_general" in line and "[14,4]" in line]
    assert products
    assert all("f32[14,4]" in line for line in products)


def test_more_chosen_than_there_are():
    with pytest.raises(ConfigError, match=r"num_experts \(2\) is less than router.top_k \(3\)"):
        mixture(2, 3)
