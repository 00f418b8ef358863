"""Modifiers of feed-forwards, mixtures, norms, blocks, heads and losses: each reaches every recipe it can."""

import functools
import re

import jax
import kanawa as kn
import pytest
from kanawa.config import diff
from kanawa.config.paths import match_path
from kanawa.contracts import Block, FeedForward, Norm, ParameterRule
from kanawa.errors import ConfigError, UsageError
from kanawa.plugins import host
from kanawa.testing.modifier import ModifierConformance
from kanawa_layers.basic.norms import LayerNorm
from kanawa_layers.feedforward.activations import gelu_exact
from kanawa_layers.models.head import Head
from kanawa_layers.models.token_loss import CrossEntropy
from kanawa_layers.modifiers.by_name import BlockKind, NormKind
from kanawa_layers.modifiers.feed_forward import Activation, FeedForwardBias, FusedGateUp
from kanawa_layers.modifiers.language_model import LabelSmoothing, LogitCap, TieEmbeddings, VocabularySize, ZLoss
from kanawa_layers.modifiers.mixture import ExpertCapacity, LossFreeBalancing, MoE
from kanawa_layers.modifiers.residual import BottleneckAdapters, DropBranches, ResidualDropout
from kanawa_layers.moe.experts import Experts, PlainExperts
from kanawa_layers.moe.mixture import MixtureOfExperts
from kanawa_layers.recipes.gpt2 import gpt2_small
from kanawa_layers.recipes.llama import llama_tiny
from kanawa_layers.stack.residual_blocks import Residual

#: A modifier, the role it acts on, and the fields of that role it may touch ("" for all).
CASES = {
    "moe": (MoE.Config(num_experts=4, shared_hidden_dim=32), FeedForward, ("",)),
    "norm": (NormKind.Config(kind="layer-norm"), Norm, ("",)),
    "activation": (Activation.Config(name="squared-relu"), (FeedForward, Experts), ("activation",)),
    "block": (BlockKind.Config(kind="sandwich-norm-block"), Block, ("",)),
    "vocab": (VocabularySize.Config(size=1000, multiple=128), kn.Module, ("vocab_size",)),
    "tie-embeddings": (TieEmbeddings.Config(tied=False), Head, ("",)),
    "logit-cap": (LogitCap.Config(cap=7.0), Head, ("logit_cap",)),
    "dropout": (ResidualDropout.Config(rate=0.2), Residual, ("dropout",)),
    "stochastic-depth": (DropBranches.Config(rate=0.3), Residual, ("stochastic_depth",)),
    "bottleneck": (BottleneckAdapters.Config(width=8), Residual, ("adapter",)),
    "z-loss": (ZLoss.Config(coefficient=0.5), CrossEntropy, ("z_loss",)),
    "label-smoothing": (LabelSmoothing.Config(amount=0.2), CrossEntropy, ("label_smoothing",)),
    "feed-forward-bias": (FeedForwardBias.Config(), (FeedForward, Experts), ("",)),
    "fused-gate-up": (FusedGateUp.Config(), FeedForward, ("",)),
}


def reached(cfg, role):
    roles = role if isinstance(role, tuple) else (role,)
    return [path for path, node in cfg.walk() if node._target is not None and issubclass(node._target, roles)]


@pytest.mark.parametrize("case", CASES)
class TestModelModifiers(ModifierConformance):
    """The kit's checks, once for each case."""

    @pytest.fixture(autouse=True)
    def _case(self, case):
        self.case, role, fields = CASES[case]
        paths = reached(llama_tiny(), role)
        self.touches = tuple(_joined(path, field) + rest for path in paths for field in fields for rest in ("", ".**"))

    def modifier(self):
        return self.case.build()

    def config(self):
        return llama_tiny()


def _joined(path, field):
    return ".".join(part for part in (path, field) if part)


def moe_config():
    return MoE.Config(num_experts=4).build()(llama_tiny())


class TestCapacity(ModifierConformance):
    touches = ("**.feed_forward.dispatcher", "**.feed_forward.dispatcher.**")

    def modifier(self):
        return ExpertCapacity.Config().build()

    def config(self):
        return moe_config()


class TestLossFree(TestCapacity):
    touches = ("**.router.balancing", "**.router.balancing.**", "**.router.balance_loss")

    def modifier(self):
        return LossFreeBalancing.Config().build()


@functools.cache
def recipes():
    """Returns one model of each family in the catalog, by name."""
    families = {}
    for state in host().components("models"):
        recipe = kn.component("models", state.name)
        families.setdefault(recipe.__module__, (state.name, recipe))
    return {name: recipe() for name, recipe in families.values()}


@pytest.mark.parametrize("case", CASES)
def test_every_recipe_is_reached_and_nothing_else_is_touched(case):
    modifier, role, fields = CASES[case]
    count = 0
    for name, before in recipes().items():
        try:
            after = modifier.build()(before.clone())
        except ConfigError as refusal:
            # A recipe without the part, such as Mamba-2 without feed-forwards, or GPT-2's, which aren't gated.
            assert re.search("no .* under|nothing under|can't become", str(refusal)), name
            continue
        count += 1
        paths = reached(before, role)
        allowed = [_joined(path, field) + rest for path in paths for field in fields for rest in ("", ".**")]
        for change in diff(before, after):
            assert any(match_path(glob, change.path) for glob in allowed), (name, change)
    assert count > len(recipes()) / 2


def test_experts_are_of_the_kind_they_replace():
    cfg = gpt2_small()
    Activation.Config(name="gelu-exact").build()(cfg)
    mixture = MoE.Config(num_experts=4, hidden_dim=64).build()(cfg).stack.layer.feed_forward
    assert isinstance(mixture.experts, PlainExperts.Config)
    assert mixture.experts.activation is gelu_exact
    assert mixture.experts.bias
    assert mixture.hidden_dim == 64
    assert MoE.Config().build()(llama_tiny()).stack.layer.feed_forward.hidden_dim == 512


def test_a_mixture_of_mixtures_is_not_made():
    again = MoE.Config(num_experts=16).build()(moe_config())
    assert reached(again, FeedForward) == ["stack.layer.feed_forward"]
    assert again.stack.layer.feed_forward.num_experts == 16


@pytest.mark.parametrize("name", ["parallel-block", "post-norm-block", "output-norm-block", "sandwich-norm-block"])
def test_blocks_keep_their_branches_and_norms(name):
    cfg = BlockKind.Config(kind=name).build()(NormKind.Config(kind="layer-norm").build()(llama_tiny()))
    built = cfg.build()
    norms = [module for module in built.stack.layer.children.values() if isinstance(module, Norm)]
    assert norms
    assert all(isinstance(norm, LayerNorm) for norm in norms)
    assert built.stack.layer.attention.config.num_kv_heads == 2


def test_all_together_build_and_shapes_follow():
    cfg = llama_tiny()
    for name in ("moe", "norm", "activation", "vocab", "dropout", "bottleneck", "z-loss", "feed-forward-bias"):
        cfg = CASES[name][0].build()(cfg)
    specs = jax.tree.leaves(kn.param_specs(cfg.build()), is_leaf=lambda s: isinstance(s, kn.ParamSpec))
    model = kn.param_specs(cfg.build())
    assert model["embedding"]["weight"].shape == (1024, 192)
    assert model["stack"]["layer"]["feed_forward"]["experts"]["down_bias"].shape == (4, 4, 192)
    assert len(specs) > 20


@pytest.mark.parametrize(
    ("modifier", "cfg", "message"),
    [
        (MoE.Config(), lambda: CrossEntropy.Config(), r"no FeedForward under '\*\*'.*: the config has CrossEntropy"),
        (MoE.Config(where="**.nowhere"), llama_tiny, "there are some at stack.layer.feed_forward"),
        (
            NormKind.Config(kind="linear"),
            llama_tiny,
            "norm: 'linear' .*fills no Norm slot.*: .*layer-norm.*rms-norm",
        ),
        (
            BlockKind.Config(kind="rms-norm"),
            llama_tiny,
            "block: 'rms-norm' .*fills no Block slot.*: .*parallel-block",
        ),
        (Activation.Config(name="silo"), llama_tiny, "provides 'silo' of kind 'activations'; did you mean 'silu'"),
        (ExpertCapacity.Config(), llama_tiny, "no TokenDispatcher under"),
        (
            VocabularySize.Config(size=8),
            lambda: CrossEntropy.Config(),
            "has a vocab_size of its own: CrossEntropy",
        ),
    ],
)
def test_what_cannot_be_modified_is_said(modifier, cfg, message):
    with pytest.raises(UsageError, match=message):
        modifier.build()(cfg())


class Learner(kn.Config):
    rules: tuple[ParameterRule, ...] = ()


class Experiment(kn.Config):
    model: kn.Module.Config = kn.REQUIRED
    learner: Learner = Learner()


def test_adapters_freeze_the_rest_where_there_is_a_learner():
    cfg = Experiment(model=llama_tiny())
    rules = BottleneckAdapters.Config().build()(cfg).learner.rules
    assert [(rule.where, rule.frozen) for rule in rules] == [("**", True), ("**.adapter.**", False)]


def test_a_mixture_keeps_its_own_foreign_names():
    mixture = MoE.Config().build()(gpt2_small()).stack.layer.feed_forward
    assert mixture.foreign == MixtureOfExperts.Config().foreign
