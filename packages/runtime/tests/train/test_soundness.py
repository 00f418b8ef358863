"""What can't be trained on is never saved, and the error says since when, what, and what is left."""

import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.composition.experiment import compose
from kanawa_runtime.train.evaluate import Evaluator
from kanawa_runtime.train.events import read_events
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.soundness import Soundness
from kanawa_runtime.train.stepping import DivergedError, NonFiniteLossError, NonFiniteStateError
from tiny_lm import tiny


def problem(after, before=None):
    return Soundness.of(after, after if before is None else before).problem()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.float8_e5m2])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_bad_element_of_any_group_is_named(dtype, value):
    good, bad = jnp.ones((3, 4), dtype), jnp.ones((3, 4), dtype).at[1, 2].set(value)
    assert not problem({"params": {"a": good}, "opt": {"adam/mu/a": good}, "state": {"mean": good}})
    for group in ("params", "opt", "state"):
        assert problem({group: {"good": good, "bad": bad}}) == f"{group}: bad"


def test_finite_parameters_whose_squares_overflow_are_as_bad():
    assert problem({"params": {"a": jnp.full(3, 1e30)}}) == "params: a"
    assert not problem({"params": {"a": jnp.full(3, 1e18)}})
    assert not problem({"opt": {"adam/nu/a": jnp.full(3, 1e30)}})


def test_a_scalar_that_was_infinite_before_is_the_optimizers_own():
    best, nan = jnp.asarray(jnp.inf), jnp.asarray(jnp.nan)
    assert not problem({"opt": {"best": best, "count": jnp.asarray(3)}})
    assert problem({"opt": {"best": best}}, {"opt": {"best": jnp.asarray(1.0)}}) == "opt: best"
    assert problem({"opt": {"best": nan}}) == "opt: best"


def test_many_are_counted():
    assert problem({"params": dict.fromkeys("abcde", jnp.full(2, jnp.nan))}).endswith("params: c and 2 more")


def diverging(path, peak, **changes):
    cfg = tiny().set(steps=6, **changes)
    cfg.checkpoints.set(every_steps=1)
    cfg.learner.schedule.set(peak=peak)
    return Loop(compose(cfg), path)


@pytest.mark.parametrize("peak", [1e30, 1e38])
def test_an_update_that_poisons_the_parameters_is_not_saved(tmp_path, peak):
    run = tmp_path / "run"
    with pytest.raises(NonFiniteStateError) as caught:
        diverging(run, peak).execute()
    assert caught.value.exit_code == 1
    for part in ("the update of step 1", "params: layer.feed_forward.down", "nothing of this step", "none yet"):
        assert part in str(caught.value)
    assert list((run / "checkpoints").iterdir()) == []
    assert read_events(run / "events.jsonl")[-1]["outcome"] == "failed"


def test_earlier_checkpoints_stay_and_one_under_way_is_finished(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(DivergedError, match=r"step 2 .*Checkpoint 1 holds the parameters that this step began with"):
        diverging(run, 1e15).execute()
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["1"]
    assert (run / "checkpoints" / "1" / "COMMIT.json").is_file()
    assert read_events(run / "events.jsonl")[-2]["event"] == "checkpoint_committed"


def test_a_state_whose_held_out_loss_is_nan_is_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(Evaluator, "evaluate", lambda *args, **fields: {"loss": float("nan"), "tokens": 8.0})
    run = tmp_path / "run"
    with pytest.raises(NonFiniteLossError, match=r"the held-out loss after step 6 is nan; nothing of this step"):
        diverging(run, 1e-3).execute()
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["3", "4", "5"]
    assert read_events(run / "events.jsonl")[-2]["event"] in ("eval", "checkpoint_committed")
