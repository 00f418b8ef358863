"""A feature costs a constant: b = c = d = 0 exactly, it really is on everywhere, and a planted cost is seen."""

import hashlib
import pathlib
import sys
import sysconfig

import jax
import jax.numpy as jnp
import kanawa
import kanawa as kn
import numpy as np
import pytest
from kanawa import contracts
from kanawa.arrays.tree import flatten_paths
from kanawa.composition.modifiers import configured, parse_modifier
from kanawa.config.rewrite import RewriteError
from kanawa.contracts import Batch, Environment
from kanawa.plugins import PluginHost, host, set_host
from kanawa_layers.positions.rotary import Rotary
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.train.trainer import Trainer
from tiny_lm import CountingTokens

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from loc_complexity.controls import BranchPerModel, FlagPerVariant, SubclassPerModel  # noqa: E402
from loc_complexity.features import FEATURES, VARIANTS  # noqa: E402
from loc_complexity.fit import fit  # noqa: E402
from loc_complexity.install import install  # noqa: E402
from loc_complexity.losses import losses  # noqa: E402
from loc_complexity.measure import measured  # noqa: E402
from loc_complexity.ours import EVERYWHERE, Ours  # noqa: E402
from loc_complexity.shipped import SHIPPED as IN_ONE_FILE  # noqa: E402
from loc_complexity.shipped import shipped  # noqa: E402
from loc_complexity.statements import changed, statements  # noqa: E402
from loc_complexity.zoo import MODELS  # noqa: E402

EACH_FEATURE = pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)


def experiment_of(model):
    learner = Learner.Config(schedule=Constant.Config(peak=1e-2))
    return Trainer.Config(model=model, data=CountingTokens.Config(), batch_size=4, steps=10, learner=learner)


def installed_sources():
    """Returns a digest of every file of the packages under test; of none that is a checkout somebody may be editing."""
    digest, site = hashlib.sha256(), pathlib.Path(sysconfig.get_path("purelib")).resolve()
    for name in ("kanawa", "kanawa_layers", "kanawa_runtime", "kanawa_parallel"):
        folder = pathlib.Path(__import__(name).__file__).resolve().parent
        if site not in folder.parents:
            continue
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Installs the largest zoo and every variant of every feature; gives the sweep that is counted as C."""
    folder, before, sources = tmp_path_factory.mktemp("world"), host(), installed_sources()
    for feature in FEATURES:
        install(Ours().after(feature, max(MODELS), max(VARIANTS)), folder)
    sys.path.insert(0, str(folder))
    set_host(PluginHost())
    namespace = {}
    exec(compile(EVERYWHERE, "everywhere.py", "exec"), namespace)
    yield namespace["experiments"]
    set_host(before)
    sys.path.remove(str(folder))
    assert installed_sources() == sources, "a feature edited one of our files"


def outermost(cfg, role):
    """Returns the paths of nodes that play the role and lie in no other such node."""
    paths = [p for p, node in cfg.walk() if isinstance(node._target, type) and issubclass(node._target, role)]
    return [p for p in paths if not any(p.startswith(f"{other}.") for other in paths)]


def touched(before, after, paths):
    """Returns (changes outside of the paths, paths without a change)."""
    changes = [change.path for change in kn.diff(before, after)]
    under = {p: [c for c in changes if c == p or c.startswith((f"{p}.", f"{p}["))] for p in paths}
    inside = {c for actual in under.values() for c in actual}
    return [c for c in changes if c not in inside], [p for p, actual in under.items() if not actual]


# --- the gate ----------------------------------------------------------------------------------------------------


@EACH_FEATURE
def test_models_and_variants_cost_nothing(feature):
    actual = measured(Ours(), feature)
    assert actual.spread.is_constant, str(actual.spread)
    assert actual.spread.residual == 0
    assert all(cost.existing == cost.side_tables == 0 for cost in actual.costs.values())
    # New definitions are made once a variant, never once a model.
    assert actual.definition.per_model == actual.definition.per_pair == 0, str(actual.definition)


def test_a_planted_branch_in_each_model_is_seen():
    actual = measured(BranchPerModel(), FEATURES[0])
    assert actual.spread.per_model == 2
    assert not actual.spread.is_constant


def test_a_subclass_for_each_pair_is_seen_although_its_files_are_new():
    actual = measured(SubclassPerModel(), FEATURES[0])
    assert (actual.spread.per_pair, actual.definition.per_pair) == (1, 2)


def test_a_shared_branch_for_each_variant_is_seen():
    assert measured(FlagPerVariant(), FEATURES[0]).spread.per_variant == 2


@pytest.mark.parametrize("name", IN_ONE_FILE)
def test_a_shipped_feature_is_known_to_its_own_file_alone(name):
    found = shipped(IN_ONE_FILE[name])
    assert found.importers == ()
    assert 1 <= found.entry_points <= 5


# --- the instrument ----------------------------------------------------------------------------------------------


def test_layout_comments_docstrings_and_imports_are_no_statements():
    plain = "import os\nx = f(1, 2)\nif x:\n    y = 1\nelse:\n    y = 2\n"
    dressed = '"""Doc."""\n\n# why\nimport sys\nx = f(\n    1,\n    2,\n)\nif x:  # so\n    y = 1\nelse:\n    y = 2\n'
    assert len(statements("a.py", plain)) == 4
    assert changed("a.py", plain, dressed) == 0
    assert changed("a.py", plain, plain.replace("y = 2", "y = 3")) == 1
    assert changed("a.py", plain, plain.replace("if x", "if not x")) == 1


def test_the_fit_is_exact_and_its_residual_is_too():
    grid = {(n, m): 3 + 2 * n + 5 * m + 7 * n * m for n in MODELS for m in VARIANTS}
    actual = fit(grid)
    assert (actual.constant, actual.per_model, actual.per_variant, actual.per_pair, actual.residual) == (3, 2, 5, 7, 0)
    grid[1, 1] += 1
    assert 0 < fit(grid).residual < 1


# --- the feature really is on ------------------------------------------------------------------------------------


@EACH_FEATURE
def test_every_variant_reaches_every_model_and_nothing_else(world, feature):
    role, pairs = getattr(contracts, feature.role), 0
    ends = {f"{feature.name}-0", f"{feature.name}-{max(VARIANTS) - 1}"}
    for model, variant, before, after in world(feature.name, experiment_of):
        pairs += 1
        if variant not in ends and model != "zoo-1":
            continue  # a quarter of all pairs is enough: variants differ in a number
        paths = outermost(before, role)
        outside, missed = touched(before, after, paths)
        assert not outside, f"{variant} changes {outside} of {model}"
        assert not missed, f"{variant} leaves {missed} of {model} as they were"
        assert paths
    assert pairs == max(MODELS) * max(VARIANTS)


def test_parameters_are_those_of_the_feature(world):
    for feature in FEATURES:
        for model, variant, before, after in world(feature.name, experiment_of):
            if not variant.endswith("-0") or (feature.role != "FeedForward" and not model.endswith("1")):
                continue
            old, new = (flatten_paths(kn.param_specs(cfg.model.build())) for cfg in (before, after))
            if feature.role != "FeedForward":
                assert {p: s.shape for p, s in old.items()} == {p: s.shape for p, s in new.items()}, model
                continue
            added = {path for path, spec in new.items() if "experts" in spec.axes and path.endswith((".up", ".down"))}
            assert len(added) == 2, model
            outside = {p for p in old if "feed_forward" not in p or "feed_forward_norm" in p}
            assert outside <= new.keys()


@pytest.mark.parametrize("name", ["partial-rope", "ntk-rope"])
def test_rotary_variants_turn_by_position_differences(world, name):
    for index in (0, max(VARIANTS) - 1):
        cfg = next(a for _, v, _, a in world(name, experiment_of) if v == f"{name}-{index}")
        positions = cfg.model.stack.layer.attention.positions.clone(head_dim=16, num_heads=2).build()
        q, k = jax.random.normal(jax.random.key(0), (2, 1, 4, 2, 16))

        def scores(offset, positions=positions, q=q, k=k):
            (turned, _), _ = kn.functional(positions, "rotate")({}, {}, q, k, jnp.arange(4)[None] + offset)
            (_, keys), _ = kn.functional(positions, "rotate")({}, {}, q, k, jnp.arange(4)[None] + offset)
            return turned, jnp.einsum("bthd,bshd->bhts", turned, keys)

        turned, near = scores(0)
        np.testing.assert_allclose(near, scores(9)[1], atol=2e-4)
        np.testing.assert_allclose(turned[:, 0], q[:, 0], atol=1e-6)
        assert not np.allclose(turned[:, 1], q[:, 1])


def test_all_at_once_train(world):
    """Partial RoPE, the mixture and Muon together, in a model whose feed-forward was its own package's."""
    cfg = experiment_of(kn.component("models", "zoo-1")())
    assert cfg.model.stack.layer.feed_forward._target.__module__ == "zoo.two_branches"
    for feature in ("partial-rope", "top2-moe", "muon"):
        cfg = configured(f"{feature}-0", {})(cfg)
    programs = cfg.build().programs(Environment())
    state, step = programs["init"].lower().compile()(), programs["train_step"].lower().compile()
    assert any("muon" in path for path in state.opt)
    rows = [CountingTokens.Config().build().row(index) for index in range(4)]
    batch = Batch(**{field: np.stack([row[field] for row in rows]) for field in rows[0]})
    losses = []
    for _ in range(10):
        state, report = step(state, batch)
        losses.append(report.read()["loss"])
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


# --- the models we ship ------------------------------------------------------------------------------------------

SHIPPED = {
    "rope:fraction=0.5": contracts.Positions,
    "rope-ntk": Rotary,
    "moe:top_k=2": contracts.FeedForward,
    "optimizer:name=muon": contracts.Optimizer,
}


def catalogued_models():
    return sorted(s.name for s in host().components("models") if s.distribution.startswith("kanawa-"))


#: Layers' own tests reach every model of the catalogue with positions and mixtures at every change.
BY_NIGHT = {"rope:fraction=0.5", "rope-ntk", "moe:top_k=2"}


@pytest.mark.parametrize(
    "modifier", [pytest.param(m, marks=pytest.mark.nightly if m in BY_NIGHT else ()) for m in SHIPPED]
)
def test_one_line_reaches_every_catalogued_model(modifier):
    role, reached, without = SHIPPED[modifier], 0, []
    for model in catalogued_models():
        before = experiment_of_any(kanawa.component("models", model)())
        paths = outermost(before, role)
        try:
            after = applied(before.clone(), modifier)
        except RewriteError as error:
            assert not paths, f"{model}: {error}"
            assert "the config has" in str(error)
            without.append(model)
            continue
        outside, missed = touched(before, after, paths)
        assert not outside, f"{modifier} changes {outside} of {model}"
        assert not [p for p in missed if not already_so(before, p, modifier)], f"{modifier} misses {missed} of {model}"
        reached += 1
    assert reached > len(without)


class AnyModel(kn.Config):
    """An experiment around any catalogued config: some are no language models."""

    model: kn.Config = kn.REQUIRED
    learner: Learner.Config = Learner.Config()


def experiment_of_any(model):
    return AnyModel(model=model)


def applied(cfg, text):
    name, values = parse_modifier(text)
    return configured(name, values)(cfg)


def already_so(cfg, path, modifier):
    """Whether the node is what the modifier would make of it."""
    node, (name, values) = cfg.get(path), parse_modifier(modifier)
    if name == "moe":
        return "num_experts" in node.fields() and (node.num_experts, node.router.top_k) == (8, 2)
    return bool(values) and all(str(vars(node).get(field)) == value for field, value in values.items())


# --- where we lose -----------------------------------------------------------------------------------------------


def test_published_losses_are_what_the_patches_cost():
    actual = {name: (cost.existing, cost.definition, files) for name, (cost, files) in losses().items()}
    assert actual == {"positions_see_activations": (14, 0, 5)}
