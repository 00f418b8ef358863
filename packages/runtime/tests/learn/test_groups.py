"""Groups: each parameter is updated by its group's optimizer, and groups that overlap or are empty are refused."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.spec import ParamSpec
from kanawa.contracts import ParameterGroup
from kanawa.errors import ConfigError
from kanawa.testing.optimizer import SPECS, OptimizerConformance
from kanawa_runtime.learn.adamw import AdamW
from kanawa_runtime.learn.groups import Grouped, ParameterGroupError, members
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.lion import Lion
from kanawa_runtime.learn.muon import Muon
from kanawa_runtime.learn.roles import roles
from kanawa_runtime.learn.schedule_free import ScheduleFreeAdamW
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.learn.sgd import SGD
from kanawa_runtime.learn.sophia import Sophia

TABLES = ParameterGroup(name="tables", roles=("embedding",), optimizer=SGD.Config(), lr_scale=0.5)
EXPERTS = ParameterGroup(name="experts", where=("experts.*",), optimizer=Lion.Config(), weight_decay=0.0)


class TestGrouped(OptimizerConformance):
    learning_rate = 0.05

    def config(self):
        rest = AdamW.Config()
        group = ParameterGroup(name="matrices", roles=("matrix", "expert"), optimizer=Muon.Config())
        return Grouped.Config(groups=(group,), rest=rest)

    unsupported = {"weight decay": "each group's optimizer has its own"}


def arrays(seed):
    return OptimizerConformance().arrays(seed)


def updated(specs=SPECS, steps=3, **fields):
    rule = Learner.Config(schedule=Constant.Config(peak=0.01), clip_norm=None, **fields).build().update_rule(specs, 10)
    params = {path: leaf for path, leaf in arrays(0).items() if path in specs}
    opt = rule.init(params)
    for step in range(steps):
        grads = {path: leaf for path, leaf in arrays(step + 1).items() if path in specs}
        params, opt, metrics = jax.jit(rule.update)(grads, opt, params)
    return params, opt, metrics, rule


def test_roles_follow_the_specs():
    assert roles(SPECS) == {
        "embedding.weight": "embedding",
        "norm.scale": "vector",
        "mlp.weight": "matrix",
        "q.weight": "matrix",
        "stack.weight": "matrix",
        "experts.weight": "expert",
    }
    assert roles({"router.weight": ParamSpec((8, 4), ("embed", "experts"))}) == {"router.weight": "matrix"}


def test_each_group_is_updated_as_by_its_optimizer_alone():
    found, opt, metrics, _ = updated(optimizer=AdamW.Config(), groups=(TABLES, EXPERTS))
    assert float(metrics["learning_rate"].value()) == pytest.approx(0.01)
    assert {"experts/lion/mu/experts.weight", "rest/adam/mu/mlp.weight", "tables/rate/count"} <= set(opt)
    table = arrays(0)["embedding.weight"] - 0.5 * 0.01 * sum(arrays(s)["embedding.weight"] for s in (1, 2, 3))
    np.testing.assert_allclose(found["embedding.weight"], table, rtol=1e-5, atol=1e-6)
    only = {"experts.weight": SPECS["experts.weight"]}
    lion = updated(only, optimizer=Lion.Config(weight_decay=0.0))[0]
    np.testing.assert_array_equal(found["experts.weight"], lion["experts.weight"])
    rest = {path: spec for path, spec in SPECS.items() if path not in ("experts.weight", "embedding.weight")}
    for path, leaf in updated(rest, optimizer=AdamW.Config())[0].items():
        np.testing.assert_allclose(found[path], leaf, rtol=1e-6, err_msg=path)


def test_a_group_that_averages_is_evaluated_at_its_average():
    group = ParameterGroup(name="tables", roles=("embedding",), optimizer=ScheduleFreeAdamW.Config())
    params, opt, _, rule = updated(optimizer=SGD.Config(), groups=(group,))
    assert rule.averages
    evaluated = rule.evaluated(params, opt)
    assert np.abs(evaluated["embedding.weight"] - params["embedding.weight"]).max() > 1e-4
    np.testing.assert_array_equal(evaluated["mlp.weight"], params["mlp.weight"])


def test_a_group_may_use_curvature():
    group = ParameterGroup(name="matrices", roles=("matrix",), optimizer=Sophia.Config())
    rule = Learner.Config(optimizer=SGD.Config(), groups=(group,)).build().update_rule(SPECS, 10)
    ones = {path: jnp.ones_like(leaf) for path, leaf in arrays(0).items()}
    assert rule.uses_curvature
    _, opt, _ = rule.update(arrays(1), rule.init(arrays(0)), arrays(0), curvature=lambda: ones)
    np.testing.assert_allclose(opt["matrices/sophia/curvature/mlp.weight"], 0.01, rtol=1e-5)


def test_what_no_group_takes_is_named(caplog):
    with caplog.at_level("INFO"):
        Learner.Config(groups=(TABLES, EXPERTS)).build().update_rule(SPECS, 10)
    assert "no group by AdamW: norm.scale, mlp.weight, q.weight and 1 more" in caplog.text
    assert "group tables by SGD: embedding.weight" in caplog.text


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            (EXPERTS, ParameterGroup(name="matrices", roles=("matrix", "expert"))),
            r"experts.weight is in 'experts' and in 'matrices', .* \(its role is 'expert'\)",
        ),
        ((TABLES, TABLES), "the name 'tables' is taken"),
        ((ParameterGroup(name="rest"),), "'rest'"),
        ((ParameterGroup(name="a", roles=("matrx",)),), "unknown role 'matrx'.*did you mean 'matrix'"),
        ((ParameterGroup(name="a", where=("mlp.wieght",)),), "no parameter matches 'mlp.wieght' of 'a'.*mlp.weight"),
        (
            (ParameterGroup(name="a", where=("mlp.*",), roles=("vector",)),),
            r"no parameter is in 'a' .* the model has 6 parameters, of the roles embedding, expert, matrix, vector",
        ),
    ],
)
def test_groups_that_overlap_or_match_nothing_are_refused(groups, message):
    with pytest.raises(ParameterGroupError, match=message):
        members(groups, SPECS)


def test_the_modifier_adds_groups_one_after_another():
    cfg = kn.experiment("tiny-lm").config
    for values in (
        {"name": "tables", "roles": ("embedding",), "optimizer": "sgd", "values": {"momentum": 0.5}},
        {"name": "vectors", "roles": ("vector",), "lr_scale": 2.0},
    ):
        cfg = kn.component("modifiers", "group").Config(**values).build()(cfg.clone())
    first, second = cfg.learner.groups
    assert (first.optimizer.momentum, first.roles) == (0.5, ("embedding",))
    assert (second.optimizer, second.lr_scale) == (None, 2.0)
    with pytest.raises(ConfigError, match="has no learner with 'groups'"):
        kn.component("modifiers", "group").Config(name="a").build()(SGD.Config())
