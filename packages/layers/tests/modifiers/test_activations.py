"""A stranger's activation, by its name in the catalog, reaches every feed-forward; configs hold the function."""

import sys

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import ForeignConfigError, Sequences
from kanawa.errors import UnknownNameError, UsageError
from kanawa.plugins import PluginHost, host, set_host
from kanawa_layers.feedforward.gated import FusedGatedFeedForward, GatedFeedForward
from kanawa_layers.feedforward.plain import PlainFeedForward
from kanawa_layers.modifiers.feed_forward import Activation
from kanawa_layers.moe.expert_choice import ExpertChoiceMixture
from kanawa_layers.moe.experts import GatedExperts, PlainExperts
from kanawa_layers.moe.mixture import MixtureOfExperts
from kanawa_layers.moe.router import TopKRouter
from kanawa_layers.recipes.hf_config import activation, activation_name

SOURCE = '''
import jax.numpy as jnp

def snake(x):
    """Returns x + sin(x)^2 (Ziyin et al. 2020)."""
    return x + jnp.square(jnp.sin(x))

class Snake:
    pass
'''
POINTS = """
[kanawa.activations]
snake = strange_activations:snake
snake-class = strange_activations:Snake

[kanawa.hf_activations]
snake = strange_activations:snake
"""


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    info = tmp_path / "strange_activations-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange-activations\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    (tmp_path / "strange_activations.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set_host(PluginHost())
    yield
    set_host(before)
    sys.modules.pop("strange_activations", None)


class Holder(kn.Config):
    part: kn.Module.Config = kn.REQUIRED


def experts(kind):
    router = TopKRouter.Config(top_k=1)
    return MixtureOfExperts.Config(hidden_dim=8, num_experts=2, router=router, experts=kind.Config())


FEED_FORWARDS = [
    PlainFeedForward.Config(hidden_dim=8),
    GatedFeedForward.Config(hidden_dim=8),
    FusedGatedFeedForward.Config(hidden_dim=8),
    experts(GatedExperts),
    experts(PlainExperts),
    ExpertChoiceMixture.Config(hidden_dim=8, num_experts=2),
]


@pytest.mark.parametrize("part", FEED_FORWARDS, ids=lambda part: type(part).__qualname__)
def test_a_strangers_activation_is_in_every_feed_forward(stranger, part):
    cfg = Activation.Config(name="snake").build()(Holder(part=part.clone().set(input_dim=4)))
    assert "strange_activations:snake" in kn.to_text(cfg)
    assert kn.to_text(kn.from_json(kn.to_json(cfg))) == kn.to_text(cfg)
    module = cfg.part.build(name="part")
    params, x = kn.initialize(module, jax.random.key(0)), jax.random.normal(jax.random.key(1), (1, 6, 4))
    plain = part.clone().set(input_dim=4).build(name="part")
    (actual, before) = (kn.functional(each)(params, {}, x, Sequences())[0] for each in (module, plain))
    assert np.abs(actual - before).max() > 1e-4
    assert "sin" in str(jax.make_jaxpr(lambda p: kn.functional(module)(p, {}, x, Sequences())[0])(params))


def test_it_has_a_name_in_hugging_face_configs_if_it_says_so(stranger):
    function = activation("snake")
    np.testing.assert_allclose(function(jnp.float32(1.0)), 1.0 + np.sin(1.0) ** 2, rtol=1e-6)
    assert activation_name(function) == "snake"


def test_a_name_that_is_no_function_and_one_nobody_has(stranger):
    with pytest.raises(UsageError, match=r"'snake-class' is the class .*Snake.*expected a function"):
        Activation.Config(name="snake-class").build()(Holder(part=FEED_FORWARDS[0].clone()))
    with pytest.raises(UnknownNameError, match=r"'snakes' of kind 'activations'; did you mean 'snake'"):
        Activation.Config(name="snakes").build()(Holder(part=FEED_FORWARDS[0].clone()))


def test_without_the_stranger_the_name_is_unknown():
    with pytest.raises(ForeignConfigError, match="unknown activation 'snake'"):
        activation("snake")


def test_ours_are_catalogued_and_the_text_holds_the_function():
    names = {state.name for state in host().components("activations")}
    assert names >= {"silu", "relu", "sigmoid", "gelu-tanh", "gelu-exact", "quick-gelu", "squared-relu", "identity"}
    text = kn.to_text(Activation.Config(name="squared-relu").build()(Holder(part=FEED_FORWARDS[0].clone())))
    assert "part.activation: kanawa_layers.feedforward.activations:squared_relu" in text
