"""A bad row is named after it has spoiled a step, and the run goes on without its batch."""

import jax.numpy as jnp
import numpy as np
import pytest
import tiny_lm
from kanawa.composition.experiment import compose
from kanawa.errors import UsageError
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.train.batches import asked_to_leave_out
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.screen import LineScreen
from kanawa_runtime.train.stepping import NonFiniteLossError

BAD_ROW = 43  # the fourth of batch 6, of eight rows each


class Spoilt(tiny_lm.CountingTokens):
    """Weights of one row aren't finite."""

    def row(self, index):
        row = super().row(index)
        if index == BAD_ROW:
            row["loss_weights"][3] = np.nan
        return row


class Rare(tiny_lm.CountingTokens):
    """The last token of the vocabulary comes in one row alone."""

    def row(self, index):
        row = super().row(index % 7)
        if index == BAD_ROW:
            row["input_ids"] = np.full_like(row["input_ids"], 63)
        return row


class Fragile(tiny_lm.TinyLM):
    def embed(self, input_ids, sequences):
        return jnp.where(input_ids[..., None] == 63, jnp.nan, super().embed(input_ids, sequences))


def attempt(run, cfg, *, leave_out=None, steps=9, from_step=None, overrides=()):
    cfg, lines = cfg.clone(), []
    cfg.checkpoints.set(every_steps=4)
    composition = compose(cfg, overrides=overrides)
    screen = LineScreen(lines.append)
    batches = None if leave_out is None else asked_to_leave_out(leave_out)
    Loop(composition, run, steps=steps, from_step=from_step, leave_out=batches, screen=screen).execute()
    return lines


@pytest.mark.parametrize(
    ("cfg", "reason"),
    [
        (tiny_lm.tiny().set(data=Spoilt.Config()), "has loss_weights that aren't finite"),
        (tiny_lm.tiny().set(data=Rare.Config(), model=Fragile.Config()), "alone has a loss that isn't finite"),
    ],
)
def test_the_row_is_named_and_the_run_goes_on_without_it(tmp_path, cfg, reason):
    run = tmp_path / "run"
    with pytest.raises(NonFiniteLossError) as error:
        attempt(run, cfg)
    said = str(error.value)
    assert f"In batch 6 row {BAD_ROW} {reason}" in said
    assert "To resume from step 4, its optimizer and data position included, without that batch: kanawa train" in said
    assert said.endswith("--leave-out 6")
    with pytest.raises(NonFiniteLossError):
        attempt(run, cfg)
    lines = attempt(run, cfg, leave_out="6")
    assert "batches 6 to 6 are left out from now on" in lines
    assert "resuming at step 4" in "\n".join(lines)
    events = read_events(run / "events.jsonl")
    assert events[-1]["outcome"] == "done" and max(e["step"] for e in events if e["event"] == "step") == 9
    assert [e["rows"] for e in events if e["event"] == "rows_at_fault"][0] == [BAD_ROW]
    # Asked for again, as a supervisor does, it changes nothing.
    assert not any("left out from now on" in line for line in attempt(run, cfg, leave_out="6"))


def test_what_was_learned_from_can_only_be_left_out_by_going_back(tmp_path):
    run, cfg = tmp_path / "run", tiny_lm.tiny()
    attempt(run, cfg, steps=8)
    with pytest.raises(UsageError, match="batch 6 was learned from before step 8; go back .* --from-step 5 or an earl"):
        attempt(run, cfg, leave_out="6:7")
    attempt(run, cfg, leave_out="6:7", from_step=4)
    with pytest.raises(UsageError, match="expected FIRST:LAST"):
        asked_to_leave_out("7:6")


def test_returns_are_allowed_on_the_run_that_needs_them(tmp_path):
    run, cfg = tmp_path / "run", tiny_lm.tiny().set(data=Spoilt.Config())
    with pytest.raises(NonFiniteLossError):
        attempt(run, cfg)
    with pytest.raises(Exception, match="The run goes back to step 4 and leaves out the batches of steps 5 to 6"):
        attempt(run, cfg, overrides=("divergence.rewinds=1",))
    attempt(run, cfg, overrides=("divergence.rewinds=1",))
