"""The last lines of a run name only commands that its model and data can serve."""

import tiny_lm
from kanawa_runtime.report.resources import utilization_text
from kanawa_runtime.train.outcome import Outcome, ending


def lines(**named):
    source = tiny_lm.CountingTokens(tiny_lm.CountingTokens.Config().freeze())
    done = Outcome(kind="done", run="runs/a", step=3, total_steps=3, saved="runs/a/checkpoints/3")
    return list(ending(done, "kanawa train a", source, **named))


def test_a_model_that_continues_prompts_is_asked_to():
    assert lines() == [
        "done: 3 steps; saved in runs/a/checkpoints/3",
        "next: kanawa generate runs/a --prompt-ids 1,2,3",
        "      kanawa report runs/a",
    ]


def test_another_model_is_not():
    assert lines(generates=False)[1:] == ["next: kanawa report runs/a"]


def test_more_than_a_device_can_do_is_remarked():
    assert utilization_text(0.5) == "50.0%"
    assert utilization_text(1.3).startswith("130.0% (above 100 %: the peak on record is too low")
