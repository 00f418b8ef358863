"""Rows longer than the sequences a model's positions are for: training says so, and names what stretches them."""

import kanawa as kn
import pytest
from kanawa.plugins import host
from kanawa_runtime.train.loop import Loop

TINY = (
    "batch_size=2",
    "model.stack.num_layers=1",
    "evaluation.max_batches=1",
    "evaluation.final_batches=1",
    "sample_prompt=None",
)


@pytest.mark.parametrize(
    ("length", "modifiers", "said"),
    [
        pytest.param(256, (), "", marks=pytest.mark.nightly),
        (320, (), "rows are 320 tokens long, and the model's positions are for sequences of 256"),
        pytest.param(320, ("rope-yarn:factor=2",), "", marks=pytest.mark.nightly),
    ],
)
def test_training_says_that_rows_are_longer_than_the_model_was_made_for(tmp_path, caplog, length, modifiers, said):
    overrides = [*TINY, f"data.sequence_length={length}"]
    composed = kn.compose("quickstart", modifiers=modifiers, overrides=overrides)
    Loop(composed, tmp_path / "run", steps=1).execute()
    told = [record.getMessage() for record in caplog.records if "tokens long" in record.getMessage()]
    assert len(told) == bool(said)
    assert all(line.startswith(said) and "--modify rope-yarn:factor=2," in line for line in told)


@pytest.mark.parametrize("name", [state.name for state in host().components("experiments") if state.state.usable])
def test_no_shipped_experiment_has_rows_that_are_too_long(name):
    cfg = kn.compose(name).config
    trained = cfg.model.build().trained_length()
    assert trained is None or cfg.data.sequence_length <= trained
