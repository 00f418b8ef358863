"""A moving average beside the optimizer: by value, in float32, saved, evaluated, and not twice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.arrays.spec import ParamSpec
from kanawa.composition.experiment import compose
from kanawa.errors import ConfigError, UsageError
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.moving_average import MovingAverage
from kanawa_runtime.learn.schedule_free import ScheduleFreeAdamW
from kanawa_runtime.learn.sgd import SGD
from kanawa_runtime.runs.events import read_events, step_records
from kanawa_runtime.runs.open_run import open_run
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.screen import Screen
from tiny_lm import tiny

SPECS = {"w": ParamSpec((4, 3), ("embed", "mlp")), "b": ParamSpec((3,), ("mlp",))}


def rule(**fields):
    return Learner.Config(optimizer=SGD.Config(), average=MovingAverage.Config(**fields)).build().update_rule(SPECS, 50)


def arrays(seed, dtype=jnp.float32):
    random = np.random.default_rng(seed)
    return {path: jnp.asarray(random.standard_normal(spec.shape), dtype) for path, spec in SPECS.items()}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_it_is_the_average_of_the_formula(dtype):
    made, params = rule(decay=0.4), arrays(0, dtype)
    opt = made.init(params)
    assert jax.tree.map(jnp.shape, opt) == jax.tree.map(jnp.shape, made.abstract(params))
    expected = {path: np.asarray(value, np.float64) for path, value in params.items()}
    for step in range(8):
        params, opt, _ = jax.jit(made.update)(arrays(step + 1, dtype), opt, params)
        decay = min(0.4, (1 + step) / (10 + step))
        for path, value in params.items():
            expected[path] = decay * expected[path] + (1 - decay) * np.asarray(value, np.float64)
    found = made.evaluated(params, opt)
    assert made.averages
    for path, value in found.items():
        assert value.dtype == dtype
        assert opt[f"moving-average/{path}"].dtype == jnp.float32
        # A compiler may leave bfloat16 unrounded on its way into the average.
        exact = 1e-5 if dtype == jnp.float32 else 4e-3
        np.testing.assert_allclose(np.asarray(opt[f"moving-average/{path}"]), expected[path], rtol=exact, atol=exact)


def test_several_rates_are_averaged_at_once_and_one_is_evaluated():
    alone = {decay: rule(decay=decay) for decay in (0.15, 0.4)}
    both = rule(decay=0.4, others=(0.15,))
    other = rule(decay=0.4, others=(0.15,), evaluate=0.15)
    results = {}
    for name, made in {**alone, "both": both, "other": other}.items():
        params = arrays(0)
        opt = made.init(params)
        for step in range(8):
            params, opt, _ = made.update(arrays(step + 1), opt, params)
        results[name] = made.evaluated(params, opt)
    for found, expected in (("both", 0.4), ("other", 0.15)):
        jax.tree.map(np.testing.assert_array_equal, results[found], results[expected])
    with pytest.raises(ConfigError, match=r"evaluate \(0.5\) is not averaged; choices: 0.4, 0.15"):
        rule(decay=0.4, others=(0.15,), evaluate=0.5)
    with pytest.raises(ConfigError, match="repeat one"):
        rule(decay=0.4, others=(0.4,))


def test_training_is_not_changed_by_it():
    plain = Learner.Config(optimizer=SGD.Config()).build().update_rule(SPECS, 50)
    states = []
    for made in (plain, rule()):
        params = arrays(0)
        opt = made.init(params)
        for step in range(3):
            params, opt, _ = made.update(arrays(step + 1), opt, params)
        states.append(params)
    assert all(np.array_equal(states[0][path], states[1][path]) for path in SPECS)


def test_an_optimizer_that_averages_takes_no_second_average():
    cfg = Learner.Config(optimizer=ScheduleFreeAdamW.Config(), average=MovingAverage.Config())
    with pytest.raises(
        UsageError, match=r"ScheduleFreeAdamW evaluates an average of its own already; set learner.aver"
    ):
        cfg.build().update_rule(SPECS, 50)


def test_it_is_saved_resumed_and_opened(tmp_path):
    def go_on(run, steps):
        cfg = tiny()
        cfg.checkpoints.set(every_steps=2)
        cfg.learner.set(average=MovingAverage.Config(decay=0.5))
        return Loop(compose(cfg), run, steps=steps, screen=Screen()).execute()

    go_on(tmp_path / "whole", 6)
    go_on(tmp_path / "halves", 3)
    go_on(tmp_path / "halves", 6)
    losses = [step_records(read_events(tmp_path / name / "events.jsonl")) for name in ("whole", "halves")]
    assert [r["loss"] for r in losses[0].values()] == [r["loss"] for r in losses[1].values()]
    opened = [open_run(tmp_path / name) for name in ("whole", "halves")]
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), *(run.params for run in opened)))
