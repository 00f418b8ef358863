"""The trainer's programs, on the tiny model of core: loss falls, state is sharded, kernels and shapes are declared."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.plan import ExecutionPlan
from kanawa.contracts import Batch, Environment
from kanawa_runtime.learn.adafactor import Adafactor
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedule_free import ScheduleFreeAdamW
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.train.trainer import Trainer
from tiny_lm import CountingTokens, TinyLM


def config(**changes):
    cfg = Trainer.Config(
        model=TinyLM.Config(),
        data=CountingTokens.Config(),
        batch_size=8,
        steps=20,
        learner=Learner.Config(schedule=Constant.Config(peak=3e-2)),
    )
    return cfg.set(**changes)


def batch(index=0):
    rows = [CountingTokens.Config().build().row(index * 8 + i) for i in range(8)]
    return Batch(**{name: np.stack([row[name] for row in rows]) for name in rows[0]})


@pytest.fixture(scope="module")
def programs():
    return config().build().programs(Environment())


def test_loss_falls_and_steps_are_counted(programs):
    state = programs["init"].lower().compile()()
    step = programs["train_step"].lower().compile()
    losses = []
    for index in range(20):
        state, report = step(state, batch(index))
        losses.append(report.read()["loss"])
    assert losses[0] == pytest.approx(np.log(64), abs=0.2)
    assert losses[-1] < losses[0] - 0.25
    assert int(state.step) == 20
    assert int(state.opt["adam/count"]) == 20


def test_a_step_is_a_pure_function_of_state_and_batch(programs):
    step = programs["train_step"].lower().compile()
    runs = []
    for _ in range(2):
        state = programs["init"].lower().compile()()
        state, report = step(state, batch())
        runs.append((report.values, state))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, *runs))


def test_the_report_divides_on_the_host(programs):
    state = programs["init"].lower().compile()()
    report = programs["eval_step"].lower().compile()(state.params, state.state, batch())
    numbers = report.read()
    total, weight = report.main_loss()
    assert weight == 8 * 16
    assert numbers["cross_entropy"] == pytest.approx(total / weight)


def test_two_batches_weigh_by_tokens(programs):
    state = programs["init"].lower().compile()()
    evaluate = programs["eval_step"].lower().compile()
    half = batch()._replace(loss_weights=np.repeat(np.eye(2, 8, dtype=np.float32).sum(0)[:, None], 16, 1))
    reports = [evaluate(state.params, state.state, b) for b in (batch(), half)]
    total, weight = reports[0].main_loss(sum(np.asarray(r.values) for r in reports))
    assert weight == 8 * 16 + 2 * 16
    assert total == pytest.approx(sum(r.main_loss()[0] for r in reports), rel=1e-6)


def test_nothing_is_opened_to_describe_a_program():
    class Closed(CountingTokens):
        class Config(CountingTokens.Config):
            """Unchanged."""

        def row(self, index):
            raise AssertionError(index)

    programs = config(data=Closed.Config()).build().programs(Environment())
    assert programs["train_step"].abstract_args[1].input_ids.shape == (8, 16)


def test_sizes_are_checked():
    with pytest.raises(kn.KanawaError, match=r"steps: expected int \(at least 1\), got 0"):
        config(steps=0).freeze()


def test_an_averaging_optimizer_is_evaluated_at_its_average():
    trainer = config(learner=Learner.Config(optimizer=ScheduleFreeAdamW.Config())).build()
    state = trainer.init()
    z = {path: 2.0 * leaf for path, leaf in state.opt.items() if path.startswith("average/z/")}
    found = trainer.evaluated(state.params, {**state.opt, **z})
    expected = jax.tree.map(lambda y: (y - 0.1 * 2.0 * y) / 0.9, state.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
    plain = config().build()
    assert plain.evaluated(state.params, {}) is state.params


def test_factored_state_is_sharded_like_its_parameter():
    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))
    plan = ExecutionPlan(param_rules=(("embed", ("fsdp",)),))
    trainer = config(learner=Learner.Config(optimizer=Adafactor.Config(min_factored=4))).build()
    abstract = trainer.abstract_state(Environment(plan, mesh))
    (row,) = [leaf for path, leaf in abstract.opt.items() if path.startswith("adafactor/row/") and path.endswith("up")]
    (column,) = [p for path, p in abstract.opt.items() if path.startswith("adafactor/column/") and path.endswith("up")]
    assert (row.shape[-1], row.sharding.spec[1]) == (1, "fsdp")
    assert "fsdp" not in tuple(column.sharding.spec)
