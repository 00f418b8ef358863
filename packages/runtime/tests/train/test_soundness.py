"""What can't be trained on is never saved, and the error says since when, what, and what is left."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.composition.experiment import compose
from kanawa.errors import UsageError
from kanawa_runtime.data.loader import GrainLoader
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.runs.model_store import RunStore
from kanawa_runtime.train import start
from kanawa_runtime.train.batches import DataReadError
from kanawa_runtime.train.evaluate import Evaluator
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.step_report import Soundness
from kanawa_runtime.train.stepping import DivergedError, NonFiniteLossError, NonFiniteStateError
from tiny_lm import CountingTokens, tiny


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


def test_a_save_counts_only_once_the_next_step_is_sound(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(DivergedError, match=r"step 2 .*nor the state of step 1, which leads to it.*\(none yet\)"):
        diverging(run, 1e15).execute()
    assert list((run / "checkpoints").iterdir()) == []
    events = {event["event"]: event for event in read_events(run / "events.jsonl")}
    assert "checkpoint_committed" not in events
    assert events["checkpoint_dropped"]["step"] == 1


def test_an_error_between_two_steps_loses_no_save(tmp_path, monkeypatch):
    """The step that would decide on the save never comes: the last batch is tried instead."""
    row = CountingTokens.row

    def failing(source, index):
        if index >= 24:
            raise OSError(5, "Input/output error")
        return row(source, index)

    monkeypatch.setattr(CountingTokens, "row", failing)
    run = tmp_path / "run"
    with pytest.raises(DataReadError, match=r"next batch can't be read.*Input/output error.*same command again"):
        diverging(run, 1e-3, loader=GrainLoader.Config(prefetch_batches=1)).execute()
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["1", "2", "3"]


def test_a_batch_after_the_last_one_is_not_needed(tmp_path, monkeypatch):
    row = CountingTokens.row

    def ending(source, index):
        if index >= 48:
            raise OSError(5, "Input/output error")
        return row(source, index)

    monkeypatch.setattr(CountingTokens, "row", ending)
    outcome = diverging(tmp_path / "run", 1e-3).execute()
    assert (outcome.step, outcome.exit_code) == (6, 0)
    assert (tmp_path / "run" / "checkpoints" / "6" / "COMMIT.json").is_file()


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_a_start_from_numbers_that_nothing_can_be_computed_with_is_refused(tmp_path, monkeypatch, value):
    origin = tmp_path / "origin"
    diverging(origin, 1e-3).execute()
    load = start.stored_model

    def spoilt(directory):
        stored = load(directory)
        table = np.array(stored.params["table"])
        table[0, :2] = value
        return dataclasses.replace(stored, params={**stored.params, "table": table})

    monkeypatch.setattr(start, "stored_model", spoilt)
    with pytest.raises(UsageError, match=r"params: table \(2 of 512 elements\)") as caught:
        Loop(compose(tiny().set(steps=6)), tmp_path / "run", initial=origin).execute()
    assert f"{origin} holds numbers that are NaN" in str(caught.value)
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
    with pytest.raises(UsageError, match="the model holds numbers that are NaN"):
        RunStore().save(tmp_path / "converted", spoilt(origin))
    assert not (tmp_path / "converted").exists()


def test_a_state_whose_held_out_loss_is_nan_is_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(Evaluator, "evaluate", lambda *args, **fields: {"loss": float("nan"), "tokens": 8.0})
    run = tmp_path / "run"
    with pytest.raises(NonFiniteLossError, match=r"the held-out loss after step 6 is nan; nothing of this step"):
        diverging(run, 1e-3).execute()
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["3", "4", "5"]
    kinds = [event["event"] for event in read_events(run / "events.jsonl") if event["event"] != "time_spent"]
    assert kinds[-2] in ("eval", "checkpoint_committed")
