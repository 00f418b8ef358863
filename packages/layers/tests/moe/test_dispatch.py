"""Dispatchers and what a mixture adds to them, against each other and against loops over tokens."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import Sequences
from kanawa.errors import ConfigError
from kanawa_layers.basic.linear import Linear
from kanawa_layers.feedforward.activations import quick_gelu
from kanawa_layers.feedforward.gated import ClampedProduct, GatedFeedForward
from kanawa_layers.feedforward.plain import PlainFeedForward
from kanawa_layers.moe.dispatchers import CapacityDispatcher
from kanawa_layers.moe.expert_choice import ExpertChoiceMixture, ExpertChoiceRouter
from kanawa_layers.moe.experts import GatedExperts, PlainExperts
from kanawa_layers.moe.mixture import MixtureOfExperts
from kanawa_layers.moe.router import Sigmoid, TopKRouter

X = jax.random.normal(jax.random.key(0), (2, 6, 8))
TOKENS = np.asarray(X).reshape(12, 8)
PADDED = Sequences(segment_ids=jnp.array([[1] * 6, [1] * 2 + [0] * 4]))


def built(cfg):
    """The module, and random parameters made without compiling anything; no bias is zero."""
    module = cfg.set(input_dim=8).build(name="moe")
    draw = np.random.default_rng(0).standard_normal
    specs = kn.param_specs(module)
    is_spec = lambda s: isinstance(s, kn.ParamSpec)  # noqa: E731
    return module, jax.tree.map(lambda s: 0.4 * draw(s.shape, np.float32), specs, is_leaf=is_spec)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def top_two(router):
    """Experts and normalised softmax weights of each token."""
    logits = TOKENS @ router["weight"] + router.get("bias", 0.0)
    ids = np.argsort(-logits, axis=-1)[:, :2]
    odds = np.exp(np.take_along_axis(logits, ids, -1))
    return ids, odds / odds.sum(-1, keepdims=True)


def run(module, params, sequences=None, train=False):
    call = jax.jit(lambda p: kn.functional(module)(p, {}, X, sequences or Sequences(), train=train))
    return call(params)


def mixture(**changes):
    return MixtureOfExperts.Config(hidden_dim=12, num_experts=4, **changes)


def test_ample_capacity_is_dropless_padding_included():
    module, params = built(mixture(dispatcher=CapacityDispatcher.Config(factor=4.0)))
    dropless, _ = built(mixture())
    actual, outputs = run(module, params, PADDED, train=True)
    wanted, _ = run(dropless, params, PADDED)
    np.testing.assert_allclose(actual, wanted, atol=1e-5)
    np.testing.assert_array_equal(actual[1, 2:], 0.0)
    assert float(outputs.metrics["dispatcher.dropped"].value()) == 0.0
    assert float(outputs.metrics["dispatcher.dropped"].weight) == 8 * 2


def test_a_full_expert_drops_late_copies_first_choices_going_first():
    module, params = built(mixture(dispatcher=CapacityDispatcher.Config(factor=0.5)))
    actual, outputs = run(module, params, PADDED, train=True)
    valid = np.asarray(PADDED.segment_ids).reshape(-1) > 0
    ids, weights = top_two(params["router"])
    capacity, used, dropped, wanted = 3, np.zeros(4, int), 0, np.zeros((12, 8))
    each = [expert_output(params["experts"], e, TOKENS) for e in range(4)]
    for choice in range(2):
        for token in range(12):
            expert = ids[token, choice]
            if not valid[token]:
                continue
            if used[expert] == capacity:
                dropped += 1
                continue
            used[expert] += 1
            wanted[token] += weights[token, choice] * each[expert][token]
    assert dropped, "nothing is dropped: the test proves nothing"
    np.testing.assert_allclose(actual.reshape(12, 8), wanted, atol=1e-4)
    assert float(outputs.metrics["dispatcher.dropped"].total) == dropped


def expert_output(p, e, x):
    gate = x @ p["gate"][e]
    return gate * sigmoid(gate) * (x @ p["up"][e]) @ p["down"][e]


def test_gpt_oss_experts_with_biases():
    experts = GatedExperts.Config(bias=True, activation=quick_gelu, gating=ClampedProduct.Config(limit=1.5))
    module, params = built(mixture(experts=experts, router=TopKRouter.Config(bias=True)))
    p = params["experts"]
    actual, _ = run(module, params)
    ids, weights = top_two(params["router"])
    for token, x in enumerate(TOKENS):
        wanted = 0.0
        for e, w in zip(ids[token], weights[token], strict=True):
            gate = np.minimum(x @ p["gate"][e] + p["gate_bias"][e], 1.5)
            up = np.clip(x @ p["up"][e] + p["up_bias"][e], -1.5, 1.5)
            wanted += w * (((up + 1) * gate * sigmoid(1.702 * gate)) @ p["down"][e] + p["down_bias"][e])
        np.testing.assert_allclose(actual.reshape(12, 8)[token], wanted, atol=1e-4)


@pytest.mark.parametrize("gated", [False, True])
def test_a_shared_feed_forward_is_added(gated):
    shared = GatedFeedForward.Config(hidden_dim=5)
    module, params = built(mixture(shared=shared, shared_gate=Linear.Config() if gated else None))
    alone, _ = built(mixture())
    routed, _ = run(alone, {name: params[name] for name in ("router", "experts")})
    weights = {name: leaf["weight"][None] for name, leaf in params["shared"].items()}
    common = expert_output(weights, 0, np.asarray(X))
    if gated:
        common = common * sigmoid(np.asarray(X) @ params["shared_gate"]["weight"])
    np.testing.assert_allclose(run(module, params)[0], routed + common, atol=1e-4)


def test_llama4_weighs_the_input():
    router = TopKRouter.Config(top_k=1, scoring=Sigmoid.Config(), normalise_weights=False)
    module, params = built(mixture(router=router, weigh_inputs=True))
    actual, _ = run(module, params)
    for token, x in enumerate(TOKENS):
        logits = x @ params["router"]["weight"]
        wanted = expert_output(params["experts"], logits.argmax(), x * sigmoid(logits.max()))
        np.testing.assert_allclose(actual.reshape(12, 8)[token], wanted, atol=1e-4)


def test_one_plain_expert_is_the_plain_feed_forward():
    cfg = mixture(experts=PlainExperts.Config(bias=True), router=TopKRouter.Config(top_k=1)).set(num_experts=1)
    module, params = built(cfg)
    biased = Linear.Config(bias=True)
    dense = PlainFeedForward.Config(input_dim=8, hidden_dim=12, up=biased, down=biased).build(name="ff")
    p = {name: {"weight": params["experts"][name][0], "bias": params["experts"][f"{name}_bias"][0]} for name in ("up", "down")}  # fmt: skip  # noqa: E501
    np.testing.assert_allclose(run(module, params)[0], run(dense, p)[0], atol=1e-5)


def test_experts_choose_their_tokens():
    router = ExpertChoiceRouter.Config(factor=1.0)
    module, params = built(ExpertChoiceMixture.Config(hidden_dim=12, num_experts=4, router=router))
    actual, outputs = run(module, params, PADDED)
    valid = np.asarray(PADDED.segment_ids).reshape(-1) > 0
    odds = np.exp(TOKENS @ params["router"]["weight"])
    scores = odds / odds.sum(-1, keepdims=True) * valid[:, None]
    wanted, visits = np.zeros((12, 8)), np.zeros(12)
    for e in range(4):
        for token in np.argsort(-scores[:, e], kind="stable")[:3]:
            wanted[token] += scores[token, e] * expert_output(params["experts"], e, TOKENS[token])
            visits[token] += valid[token]
    np.testing.assert_allclose(actual.reshape(12, 8), wanted, atol=1e-4)
    unrouted = outputs.metrics["router.unrouted"]
    assert (float(unrouted.total), float(unrouted.weight)) == (((visits == 0) & valid).sum(), valid.sum())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weigh_inputs": True}, "weigh_inputs needs router.top_k 1, found 2"),
        ({"shared_gate": Linear.Config()}, "shared_gate is set, but there is no shared feed-forward"),
    ],
)
def test_impossible_mixtures(changes, message):
    with pytest.raises(ConfigError, match=message):
        mixture(**changes).set(input_dim=8).build(name="moe")
