"""One modifier line reaches every family: only targeted nodes change, and the changed model trains."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import kanawa as kn
import pytest
from kanawa.config import diff
from kanawa.contracts import Batch, CausalLM, FeedForward
from kanawa.plugins import host
from kanawa_layers.convert.families import model_config
from kanawa_layers.modifiers.mixture import MoE
from kanawa_layers.modifiers.positions import Rope
from kanawa_layers.moe.mixture import MixtureOfExperts

FIXTURES = Path(__file__).parent.parent / "fixtures"
#: Families whose every layer has a dense feed-forward and attends.
DENSE = ["gpt2", "llama", "llama3", "qwen2", "qwen3", "gemma2", "gemma3", "mistral", "olmo2"]
QUICK = [("gpt2", "moe"), ("gemma2", "rope")]
MODIFIERS = {"moe": MoE.Config(num_experts=4, top_k=2), "rope": Rope.Config(theta=5000.0, fraction=0.5)}
CASES = [
    pytest.param(family, name, marks=() if (family, name) in QUICK else pytest.mark.nightly)
    for family in DENSE
    for name in MODIFIERS
]


def language_recipes():
    """Returns the catalogued causal models of this package, by name."""
    actual = {}
    for one in host().components("models"):
        if one.distribution == "kanawa-layers":
            cfg = kn.component("models", one.name)()
            if isinstance(cfg, CausalLM.Config):
                actual[one.name] = cfg
    return actual


def test_moe_changes_feed_forwards_and_nothing_else():
    reached = 0
    for name, cfg in language_recipes().items():
        targets = [path for path, node in cfg.walk() if isinstance(node, FeedForward.Config)]
        if not targets or any(isinstance(cfg.get(path), MixtureOfExperts.Config) for path in targets):
            continue
        changed = diff(cfg, MODIFIERS["moe"].build()(cfg.clone()))
        assert changed, name
        outside = [c.path for c in changed if not any(c.path.startswith(path) for path in targets)]
        assert not outside, f"{name}: {outside}"
        reached += 1
    assert reached >= 20


def test_rope_changes_positions_and_nothing_else():
    reached = 0
    for name, cfg in language_recipes().items():
        if not any(path.endswith(".positions") for path, _ in cfg.walk()):
            continue
        changed = diff(cfg, MODIFIERS["rope"].build()(cfg.clone()))
        outside = [c.path for c in changed if ".positions" not in c.path]
        assert changed, name
        assert not outside, f"{name}: {outside}"
        reached += 1
    assert reached >= 20


@pytest.mark.parametrize(("family", "name"), CASES)
def test_a_modified_model_trains(family, name):
    cfg = model_config(json.loads((FIXTURES / family / "config.json").read_text()))
    model = MODIFIERS[name].build()(cfg).freeze().build()
    tokens = jnp.arange(9)[None] * jnp.arange(1, 5)[:, None] % cfg.vocab_size
    batch = Batch.of_tokens(tokens)

    def loss(params):
        _, outputs = kn.functional(model)(params, state, batch, key=jax.random.key(1), train=True)
        return outputs.total_loss()

    @jax.jit
    def step(params):
        value, grads = jax.value_and_grad(loss)(params)
        size = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
        rate = 0.3 / jnp.maximum(size, 1.0)
        return value, jax.tree.map(lambda p, g: p - rate * g, params, grads)

    params = kn.initialize(model, jax.random.key(0))
    state = kn.initial_state(model, jax.random.key(0))
    losses = []
    for _ in range(10):
        value, params = step(params)
        losses.append(float(value))
    assert all(math.isfinite(value) for value in losses)
    assert losses[-1] < 0.9 * losses[0], losses
