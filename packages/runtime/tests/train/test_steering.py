"""Services steer a run by its evaluations: it stops early, saves the best, lowers its rate, the same after a resume."""

from typing import ClassVar

import kanawa as kn
import pytest
import tiny_lm
from kanawa.composition.experiment import compose
from kanawa.contracts import Service, Steer
from kanawa.testing.service import ServiceConformance
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.services.by_evaluation import BestCheckpoint, EarlyStopping, RateOnPlateau
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.screen import LineScreen

#: The tiny model's loss falls at every evaluation, so that none after the first is better.
NEVER_BETTER = {"higher_is_better": True}


class TestEarlyStopping(ServiceConformance):
    def config(self):
        return EarlyStopping.Config()


class TestRateOnPlateau(ServiceConformance):
    def config(self):
        return RateOnPlateau.Config()


class TestBestCheckpoint(ServiceConformance):
    def config(self):
        return BestCheckpoint.Config()


class Broken(Service):
    """Raises where it is asked."""

    steers: ClassVar[bool] = True

    class Config(Service.Config):
        """No fields."""

    def start(self, run):
        """Nothing."""

    def stop(self, run):
        """Nothing."""

    def steer(self, run, evaluations) -> Steer | None:
        """Fails."""
        raise RuntimeError("no idea")


def attempt(path, *services, held_out=16, steps=20, steerable=False, saves=100, from_step=None):
    cfg, lines = tiny_lm.tiny(), []
    cfg.set(services=services)
    cfg.data.set(held_out_rows=held_out)
    cfg.evaluation.set(every_steps=2, max_batches=2, final_batches=2)
    cfg.checkpoints.set(every_steps=saves)
    cfg.learner.set(steerable=steerable)
    loop = Loop(compose(cfg), path, steps=steps, from_step=from_step, screen=LineScreen(lines.append))
    return loop.execute(), lines, read_events(path / "events.jsonl")


def rates(events):
    return {event["step"]: event["metrics"]["learning_rate"] for event in events if event["event"] == "step"}


def test_a_run_stops_once_nothing_improves_and_counts_as_done(tmp_path):
    outcome, lines, events = attempt(tmp_path / "run", EarlyStopping.Config(patience=2, **NEVER_BETTER))
    assert (outcome.kind, outcome.exit_code, outcome.step) == ("done", 0, 6)
    assert outcome.as_json()["reason"].startswith("EarlyStopping: loss was best at step 2")
    assert any("done: 6 steps of 20, stopped early (EarlyStopping: loss was best at step 2" in line for line in lines)
    assert [event["step"] for event in events if event["event"] == "steered"] == [6]
    assert [event["final"] for event in events if event["event"] == "eval"][-1]
    assert (tmp_path / "run" / "checkpoints" / "6").is_dir()


def test_a_run_that_improves_goes_to_its_end(tmp_path):
    outcome, _, events = attempt(tmp_path / "run", EarlyStopping.Config(patience=2), steps=8)
    assert (outcome.step, outcome.reason) == (8, "")
    assert not [event for event in events if event["event"] == "steered"]


def test_the_best_checkpoint_outlives_retention_and_opens_as_a_run(tmp_path):
    _, _, events = attempt(tmp_path / "run", BestCheckpoint.Config(**NEVER_BETTER), steps=8)
    best = kn.open(tmp_path / "run" / "best")
    assert best.step == 2
    assert best.params
    assert [event["step"] for event in events if event["event"] == "steered"] == [2]
    assert not list(tmp_path.glob("run/.best*"))


def test_a_lower_rate_is_part_of_the_state(tmp_path):
    service = RateOnPlateau.Config(patience=2, factor=0.5, **NEVER_BETTER)
    _, _, events = attempt(tmp_path / "whole", service, steps=12, steerable=True, saves=8)
    unchanged = rates(attempt(tmp_path / "unchanged", steps=12, steerable=True)[2])
    lowered = rates(events)
    assert [lowered[step] / unchanged[step] for step in (6, 7, 10, 11)] == pytest.approx([1.0, 0.5, 0.5, 0.25])
    # From the checkpoint of step 8 on everything comes again as it was, the factor of the rate included.
    _, _, both = attempt(tmp_path / "whole", service, steps=12, steerable=True, saves=8, from_step=8)
    again = both[len(events) :]
    assert rates(again) == {step: rate for step, rate in lowered.items() if step > 8}
    losses = {event["step"]: event["loss"] for event in events if event["event"] == "step"}
    assert all(event["loss"] == losses[event["step"]] for event in again if event["event"] == "step")


def test_a_learner_that_is_not_steerable_says_so_and_keeps_its_rate(tmp_path):
    _, lines, events = attempt(tmp_path / "run", RateOnPlateau.Config(patience=1, **NEVER_BETTER), steps=8)
    assert any("learner.steerable=true" in line for line in lines)
    without = attempt(tmp_path / "without", steps=8)[2]
    assert rates(events) == rates(without)


def test_a_service_that_fails_steers_nothing(tmp_path, caplog):
    outcome, _, events = attempt(tmp_path / "run", Broken.Config(), steps=6)
    assert outcome.step == 6
    assert "service Broken failed in steer: RuntimeError: no idea; training continues" in caplog.text
    assert not [event for event in events if event["event"] == "steered"]


def test_a_metric_that_no_evaluation_has_is_named(tmp_path, caplog):
    attempt(tmp_path / "run", EarlyStopping.Config(metric="los"), steps=4)
    assert "an evaluation has no 'los'; its numbers: " in caplog.text


def test_without_held_out_data_it_says_that_nothing_steers(tmp_path, caplog):
    attempt(tmp_path / "run", EarlyStopping.Config(), held_out=0, steps=4)
    assert caplog.text.count("services that steer by evaluations do nothing") == 1
