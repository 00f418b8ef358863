"""`--steps` is what a new run's schedule spans; a run that is there never gets another schedule in silence."""

import pytest
import tiny_lm
from kanawa.composition.experiment import compose
from kanawa.errors import UsageError
from kanawa_runtime.learn.schedules import Constant, WarmupCosine
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.screen import LineScreen

PEAK = 1e-2


def attempt(run, *, steps=None, schedule=None, overrides=()):
    cfg, lines = tiny_lm.tiny(), []
    schedule = (
        WarmupCosine.Config(peak=PEAK, warmup_fraction=0.2, final_fraction=0.01) if schedule is None else schedule
    )
    cfg.learner.set(schedule=schedule)
    loop = Loop(compose(cfg, overrides=overrides), run, steps=steps, screen=LineScreen(lines.append))
    loop.execute()
    events = read_events(run / "events.jsonl")
    rates = {event["step"]: event["metrics"]["learning_rate"] for event in events if event["event"] == "step"}
    return rates, lines


def test_a_shorter_run_has_the_whole_schedule(tmp_path):
    rates, _ = attempt(tmp_path / "run", steps=10)
    assert rates[3] == pytest.approx(PEAK)  # two steps of ten are the warm-up
    assert rates[10] < 0.1 * PEAK


def test_beyond_a_finished_schedule_it_asks(tmp_path):
    attempt(tmp_path / "run", steps=5)
    with pytest.raises(UsageError, match=r"ends at step 5: steps 6 to 9 would train at the rate 0\.0001\b") as error:
        attempt(tmp_path / "run", steps=9)
    assert "--set steps=9" in str(error.value) and "--branch-from" in str(error.value)
    rates, lines = attempt(tmp_path / "run", overrides=("steps=9",))
    assert max(rates) == 9
    assert rates[6] > 0.3 * PEAK  # spanned anew
    assert any("steps" in line and "5" in line and "9" in line for line in lines if line.startswith("changed since"))


def test_a_run_that_is_there_keeps_its_schedule(tmp_path):
    whole, _ = attempt(tmp_path / "whole", steps=8)
    attempt(tmp_path / "parts", steps=3, overrides=("steps=8",))
    rates, lines = attempt(tmp_path / "parts", steps=6)
    assert "6 of 8 steps: the schedule of" in lines[0]
    rates, _ = attempt(tmp_path / "parts", steps=8)
    assert rates == whole


def test_a_constant_rate_goes_on_and_is_named(tmp_path):
    constant = Constant.Config(peak=PEAK)
    attempt(tmp_path / "run", steps=3, schedule=constant)
    rates, lines = attempt(tmp_path / "run", steps=5, schedule=constant)
    assert list(rates.values()) == [pytest.approx(PEAK)] * 5
    assert lines[0] == "beyond the 3 steps that the schedule spans, the rate is 0.01"
