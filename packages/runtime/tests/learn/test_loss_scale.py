"""Loss scaling: the gradient is unchanged, an overflow is skipped and halves the scale, good updates double it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.arrays.plan import ExecutionPlan, Precision
from kanawa.arrays.spec import ParamSpec
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import Batch, Environment
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.loss_scale import LossScale
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.train.trainer import Trainer
from tiny_lm import CountingTokens, TinyLM


def batch(index):
    rows = [CountingTokens.Config().build().row(index * 8 + i) for i in range(8)]
    fields = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return Batch(**fields)


def steps(count, compute="float32", **fields):
    learner = Learner.Config(schedule=Constant.Config(peak=1e-2), **fields)
    cfg = Trainer.Config(model=TinyLM.Config(), data=CountingTokens.Config(), batch_size=8, steps=20, learner=learner)
    plan = ExecutionPlan(precision=Precision(compute=compute))
    programs = cfg.build().programs(Environment(plan))
    state, step = programs["init"].lower().compile()(), programs["train_step"].lower().compile()
    reports = []
    for index in range(count):
        state, report = step(state, batch(index))
        reports.append(report.read())
    return state, reports


def test_a_power_of_two_changes_nothing_in_float32():
    plain, before = steps(3)
    scaled, after = steps(3, loss_scale=LossScale.Config(initial=2.0**10))
    for path, leaf in flatten_paths(plain.params).items():
        # A compiler fuses the division elsewhere: the last bit may differ.
        np.testing.assert_allclose(leaf, flatten_paths(scaled.params)[path], rtol=0, atol=1e-7, err_msg=path)
    for one, other in zip(before, after, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-6)
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-6)
        assert (other["loss_scale"], other["skipped_update"]) == (2.0**10, 0.0)


def test_float16_overflows_are_skipped_until_the_scale_fits():
    state, reports = steps(6, "float16", loss_scale=LossScale.Config(initial=2.0**40, largest=2.0**40, interval=100))
    skipped = [report["skipped_update"] for report in reports]
    scales = [report["loss_scale"] for report in reports]
    assert skipped == [1.0] * 6, "2**35 still overflows float16"
    assert scales == [2.0 ** (40 - n) for n in range(6)]
    assert int(state.opt["adam/count"]) == 0
    assert all(np.isfinite(leaf).all() for leaf in flatten_paths(state.params).values())


def test_float16_trains_with_it():
    _, reports = steps(20, "float16", loss_scale=LossScale.Config(interval=5))
    assert reports[-1]["loss"] < reports[0]["loss"] - 0.05
    assert reports[-1]["loss_scale"] > 2.0**15


def test_the_scale_doubles_after_good_updates_and_halves_after_a_bad_one():
    scaling = LossScale.Config(initial=8.0, interval=2, largest=16.0).build()
    state, seen = scaling.init(), []
    for finite in (True, True, True, True, True, False, False, True, False, False, False, False):
        state = scaling.update(state, jnp.asarray(finite))
        seen.append(float(scaling.scale(state)))
    assert seen == [8, 16, 16, 16, 16, 8, 4, 4, 2, 1, 1, 1]


@pytest.mark.parametrize("scale", [None, 4.0])
def test_a_nan_is_skipped_with_scaling_alone(scale):
    fields = {} if scale is None else {"loss_scale": LossScale.Config(initial=scale)}
    made = Learner.Config(**fields).build().update_rule({"w": ParamSpec((2,), ("embed",))}, 10)
    params = {"w": jnp.ones(2)}
    after, _, _ = jax.jit(made.update)({"w": jnp.asarray([jnp.nan, 1.0])}, made.init(params), params)
    assert np.isfinite(after["w"]).all() == (scale is not None)
