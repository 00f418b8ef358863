"""The number a step and an evaluation show is the model's primary loss, not one that is called like a loss."""

import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.errors import ModuleError
from kanawa.module import Loss, Mean, Outputs
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


def test_a_step_without_a_loss_has_none_and_an_undeclared_choice_is_refused():
    assert report().main_loss() == (0.0, 0.0)
    assert report(only=loss(4, 2)).main_loss() == (4.0, 2.0)
    with pytest.raises(ModuleError, match="the loss terms a, b, and declares none of them primary"):
        report(a=loss(1, 1), b=loss(1, 1))
