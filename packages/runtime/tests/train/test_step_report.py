"""The number a step and an evaluation show is the model's primary loss, not one that is called like a loss."""

import jax.numpy as jnp
import numpy as np
import pytest
import tiny_lm
from kanawa.composition.experiment import compose
from kanawa.errors import ModuleError
from kanawa.module import Loss, Mean, Outputs
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.screen import LineScreen
from kanawa_runtime.train.step_report import StepReport


def loss(total, weight, primary=False):
    return Loss(jnp.float32(total), jnp.float32(weight), 0.25, primary)


def report(**losses):
    return StepReport.of(Outputs(metrics={"accuracy": Mean(jnp.float32(1.0), jnp.float32(2.0))}, losses=losses))


def test_main_loss_is_the_declared_term():
    found = report(aux_cross_entropy=loss(100, 1), distance=loss(6, 3, primary=True), z=loss(7, 1))
    assert found.main_loss() == (6.0, 3.0)
    assert found.main_loss(2 * np.asarray(found.values)) == (12.0, 6.0)
    assert found.read()["distance"] == 2.0


def test_a_training_step_shows_the_primary_loss_and_the_sum_beside_it():
    outputs = Outputs(losses={"distance": loss(6, 3, primary=True), "z": loss(700, 1)})
    found = StepReport.of_training(outputs, {}, None)
    assert found.read() == {"distance": 2.0, "loss": 2.0, "total_loss": 0.25 * (2.0 + 700.0), "z": 700.0}
    assert found.helpers == ("z",)
    alone = Outputs(losses={"distance": Loss(jnp.float32(6), jnp.float32(3), 1.0)})
    assert StepReport.of_training(alone, {}, None).read() == {"distance": 2.0, "loss": 2.0}


class Penalised(tiny_lm.TinyLM):
    def head_and_loss(self, x, batch):
        super().head_and_loss(x, batch)
        self.add_loss("penalty", 100.0 + jnp.sum(x**2), 1.0)


class Primary(Penalised):
    def add_loss(self, name, total, weight, coefficient=1.0, *, primary=False):
        super().add_loss(name, total, weight, coefficient, primary=name == "cross_entropy")


def test_events_and_lines_of_a_run_show_it_and_the_others_by_name(tmp_path):
    cfg, lines = tiny_lm.tiny().set(model=Primary.Config()), []
    Loop(compose(cfg), tmp_path / "run", steps=2, screen=LineScreen(lines.append)).execute()
    step = next(event for event in read_events(tmp_path / "run" / "events.jsonl") if event["event"] == "step")
    assert step["loss"] == pytest.approx(np.log(64), rel=0.1)
    assert step["loss_terms"] == ["penalty"] and step["metrics"]["penalty"] > 100
    assert step["metrics"]["total_loss"] == pytest.approx(step["loss"] + step["metrics"]["penalty"], rel=1e-5)
    assert any("loss 4." in line and "penalty 1" in line for line in lines)


def test_a_step_without_a_loss_has_none_and_an_undeclared_choice_is_refused():
    assert report().main_loss() == (0.0, 0.0)
    assert report(only=loss(4, 2)).main_loss() == (4.0, 2.0)
    with pytest.raises(ModuleError, match="the loss terms a, b, and declares none of them primary"):
        report(a=loss(1, 1), b=loss(1, 1))
