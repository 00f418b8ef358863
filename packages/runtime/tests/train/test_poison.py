"""Learning rates that destroy the parameters: what was committed can always be gone on from, the rest is an error."""

import contextlib
import itertools
import math

import jax.numpy as jnp
import pytest
import tiny_lm
from kanawa.composition.experiment import compose
from kanawa.contracts import FeedForward
from kanawa.plugins import component
from kanawa_runtime.checkpoint.layout import committed_steps
from kanawa_runtime.runs.events import read_events, step_records
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.outcome import shown
from kanawa_runtime.train.screen import Screen
from kanawa_runtime.train.stepping import DivergedError

OPTIMIZERS = ("adamw", "muon", "adafactor", "sgd", "lion", "ademamix", "schedule-free-adamw")
RATES = (1e1, 1e3, 1e6, 1e9, 1e12, 1e15, 1e18, 1e22, 1e30, 1e38)
CASES = list(itertools.product(RATES, OPTIMIZERS, ("float32", "bfloat16")))
SLICE = ((1e2, "adamw", "float32"), (1e9, "muon", "bfloat16"))


class Linear(FeedForward):
    """No tanh bounds it, so large parameters give large activations; stored in any dtype."""

    class Config(FeedForward.Config):
        hidden_dim: int = 8
        dtype: str = "float32"

    def setup(self):
        """Declares two matrices."""
        size = self.config.input_dim
        self.add_param("up", (size, size), axes=("embed", "mlp"), dtype=self.config.dtype)
        self.add_param("down", (size, size), axes=("mlp", "embed"), dtype=self.config.dtype)

    def forward(self, x, sequences):
        del sequences
        return jnp.square(x @ self.param("up")) @ self.param("down")


def config(rate, optimizer, dtype):
    cfg = tiny_lm.tiny()
    cfg.model.layer.feed_forward = Linear.Config(dtype=dtype)
    cfg.checkpoints.set(every_steps=1, keep_last=50)
    cfg.learner.set(optimizer=component("optimizers", optimizer).Config())
    cfg.learner.schedule.set(peak=rate)
    return compose(cfg)


def drill(run, *case):
    """Trains six steps, then goes on from every step that was committed; returns whether it diverged, and the steps."""
    advice = ""
    try:
        Loop(config(*case), run, steps=6, screen=Screen()).execute()
    except DivergedError as error:
        advice = str(error)
        assert error.exit_code == 1
    steps = committed_steps(run / "checkpoints")
    assert (steps == list(range(1, 7))) == (not advice), (case, steps, advice)
    if steps and advice:
        assert f"Step {steps[-1]} is good" in advice, advice
        assert f"kanawa train {shown(run)} --from-step {steps[-1]}" in advice, advice
    # Backwards: going on from a step sets later ones aside.
    for step in reversed(steps):
        # It may diverge again, a step later; what counts is the loss of this one.
        with contextlib.suppress(DivergedError):
            Loop(config(*case), run, steps=step + 1, from_step=step, screen=Screen()).execute()
        losses = {n: float(r["loss"]) for n, r in step_records(read_events(run / "events.jsonl")).items()}
        assert math.isfinite(losses[step + 1]), (case, step)
    return bool(advice), steps


def drills(folder, cases):
    outcomes = [drill(folder / str(index), *case) for index, case in enumerate(cases)]
    diverged, kept = sum(d for d, _ in outcomes), sum(len(steps) for _, steps in outcomes)
    return f"drill: {len(outcomes)} rates, {diverged} ended as diverged: {kept} of {kept} committed steps go on"


def test_a_committed_step_can_be_gone_on_from(tmp_path, record_drill):
    record_drill(drills(tmp_path, SLICE))


@pytest.mark.nightly
def test_a_committed_step_can_be_gone_on_from_at_any_rate_with_any_optimizer(tmp_path, record_drill):
    record_drill(drills(tmp_path, CASES))
