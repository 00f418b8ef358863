"""Routers against a loop over tokens in NumPy, written from the papers: scores, groups, biases, weights, balancing."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.errors import ConfigError
from kanawa_layers.moe.router import BiasBalancing, GroupLimited, Sigmoid, TopKRouter

X = jax.random.normal(jax.random.key(0), (9, 6))
WEIGHT = 0.4 * np.random.default_rng(0).standard_normal((6, 8), np.float32)
BIAS = np.array([0.3, -0.4, 0.0, 0.5, -0.2, 0.1, 0.0, -0.3], np.float32)

DEEPSEEK = TopKRouter.Config(
    top_k=3,
    scoring=Sigmoid.Config(),
    selection=GroupLimited.Config(num_groups=4, top_groups=2),
    balancing=BiasBalancing.Config(rate=0.25),
    weight_scale=2.5,
    balance_loss=0.0,
    z_loss=0.0,
)
QWEN2 = TopKRouter.Config(top_k=3, normalise_weights=False)
GPT_OSS = TopKRouter.Config(top_k=3, bias=True)
LLAMA4 = TopKRouter.Config(top_k=1, scoring=Sigmoid.Config(), normalise_weights=False)


def route(cfg, *, train=False, valid=None, bias=BIAS):
    router = cfg.clone().set(input_dim=6, num_experts=8).build(name="router")
    params = {"weight": WEIGHT} | ({"bias": BIAS} if cfg.bias else {})
    state = {"balancing": {"bias": jnp.asarray(bias)}} if cfg.balancing else {}
    valid = jnp.ones(9) if valid is None else valid
    call = jax.jit(lambda p: kn.functional(router)(p, state, X, valid, train=train))
    routing, outputs = call(params)
    return np.asarray(X, np.float64) @ WEIGHT, routing, outputs


def by_hand(logits, kind):
    """Chosen experts and weights of one token."""
    if kind == "deepseek":
        scores = 1.0 / (1.0 + np.exp(-logits))
        preference = scores + BIAS
        groups = [np.sort(preference[2 * g : 2 * g + 2])[-2:].sum() for g in range(4)]
        allowed = {e for g in np.argsort(groups)[-2:] for e in (2 * g, 2 * g + 1)}
        chosen = sorted(allowed, key=lambda e: -preference[e])[:3]
        weights = scores[chosen] / scores[chosen].sum() * 2.5
    elif kind == "qwen2":
        scores = np.exp(logits) / np.exp(logits).sum()
        chosen = np.argsort(-scores)[:3]
        weights = scores[chosen]
    elif kind == "gpt-oss":
        logits = logits + BIAS
        chosen = np.argsort(-logits)[:3]
        weights = np.exp(logits[chosen]) / np.exp(logits[chosen]).sum()
    else:
        chosen = [np.argmax(logits)]
        weights = 1.0 / (1.0 + np.exp(-logits[chosen]))
    return list(chosen), weights


@pytest.mark.parametrize(
    ("cfg", "kind"),
    [(DEEPSEEK, "deepseek"), (QWEN2, "qwen2"), (GPT_OSS, "gpt-oss"), (LLAMA4, "llama4")],
    ids=["deepseek-v3", "qwen2-moe", "gpt-oss", "llama4"],
)
def test_against_a_loop_over_tokens(cfg, kind):
    logits, routing, _ = route(cfg)
    for token in range(9):
        chosen, weights = by_hand(logits[token], kind)
        assert routing.expert_ids[token].tolist() == chosen
        np.testing.assert_allclose(routing.weights[token], weights, rtol=1e-5)


def test_the_balancing_bias_moves_towards_balance_in_training_only():
    valid = jnp.array([1.0] * 6 + [0.0] * 3)
    _, routing, outputs = route(DEEPSEEK, train=True, valid=valid)
    counts = np.bincount(np.asarray(routing.expert_ids)[:6].reshape(-1), minlength=8)
    wanted = BIAS + 0.25 * np.sign(counts.mean() - counts)
    np.testing.assert_allclose(outputs.state["balancing.bias"], wanted, rtol=1e-6)
    assert not route(DEEPSEEK)[2].state


def test_a_bias_that_balances_reaches_balance():
    """Loss-free balancing, repeated, evens out the load that an unbiased sigmoid router leaves uneven."""
    cfg = DEEPSEEK.clone()
    router = cfg.set(input_dim=6, num_experts=8, balancing=BiasBalancing.Config(rate=0.01)).build(name="router")
    params, x = {"weight": WEIGHT}, np.random.default_rng(1).standard_normal((256, 6), np.float32) + np.float32(0.5)

    def step(bias, _):
        _, out = kn.functional(router)(params, {"balancing": {"bias": bias}}, x, jnp.ones(256), train=True)
        return out.state["balancing.bias"], out.metrics["max_load"].value()

    loads = jax.jit(lambda: jax.lax.scan(step, jnp.zeros(8), None, length=80)[1])()
    assert loads[0] > 1.5 / 8
    assert loads[-10:].mean() < 1.15 / 8


def test_no_gradient_reaches_the_choice_and_weights_do_not_hold_the_balancing_bias():
    router = DEEPSEEK.clone().set(input_dim=6, num_experts=8).build(name="router")
    params = {"weight": WEIGHT}

    def total(bias):
        routing, _ = kn.functional(router)(params, {"balancing": {"bias": bias}}, X, jnp.ones(9))
        return jnp.sum(routing.weights[:, 0])

    np.testing.assert_array_equal(jax.jit(jax.grad(total))(jnp.asarray(BIAS)), 0.0)


def test_balance_losses_of_batch_rows_and_devices_are_the_papers_sums():
    cfg = TopKRouter.Config(
        top_k=2, balance_loss=0.5, row_balance_loss=0.25, device_balance_loss=0.125, expert_groups=4, z_loss=0.0
    )
    router = cfg.set(input_dim=6, num_experts=8).build(name="router")
    valid = jnp.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    call = jax.jit(lambda p: kn.functional(router)(p, {}, X, valid, rows=3, train=True))
    routing, outputs = call({"weight": WEIGHT})
    logits = np.asarray(X, np.float64) @ WEIGHT
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)

    def balance(tokens, groups):
        """Number of groups times the sum of each group's share of choices times its mean probability."""
        tokens = [t for t in tokens if valid[t]]
        share, importance = np.zeros(groups), np.zeros(groups)
        for t in tokens:
            for expert in np.asarray(routing.expert_ids[t]):
                share[expert * groups // 8] += 1 / (2 * len(tokens))
            for expert in range(8):
                importance[expert * groups // 8] += probabilities[t, expert] / len(tokens)
        return groups * (share * importance).sum()

    rows = [range(0, 3), range(3, 6), range(6, 9)]
    expected = {
        "balance_loss": balance(range(9), 8),
        # Of 7 real tokens, the rows have 3, 1 and 3.
        "row_balance_loss": sum(n / 7 * balance(row, 8) for n, row in zip((3, 1, 3), rows, strict=True)),
        "device_balance_loss": balance(range(9), 4),
    }
    found = {name: term.total / term.weight for name, term in outputs.losses.items()}
    assert found == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ConfigError, match=r"num_experts \(8\) is not a multiple of expert_groups \(3\)"):
        cfg.clone().set(expert_groups=3).build(name="router")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_groups": 3}, r"num_experts \(8\) is not a multiple of selection.num_groups \(3\)"),
        ({"top_groups": 5}, r"selection.top_groups is 5, expected 1 to num_groups \(4\)"),
        ({"top_groups": 1}, r"top_k \(3\) is more than the 2 experts of 1 groups"),
        ({"group_top": 3}, r"selection.group_top is 3, expected 1 to the group's 2 experts"),
    ],
)
def test_impossible_groups(changes, message):
    cfg = DEEPSEEK.clone()
    cfg.selection.set(**changes)
    with pytest.raises(ConfigError, match=message):
        cfg.set(input_dim=6, num_experts=8).build(name="router")
