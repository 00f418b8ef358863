"""What plan and train start from: one workload around one model, and its programs by name."""

import jax
import jax.numpy as jnp
import kanawa as kn
import pytest
from kanawa.composition.prepare import prepare
from kanawa.contracts import Program, Workload
from kanawa.errors import UsageError
from tiny_lm import TinyLM


class Counted(TinyLM):
    """Counts how often it is built."""

    built = 0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        Counted.built += 1


class Job(Workload):
    """One program over the model's parameters' count."""

    def programs(self, environment):
        argument = jax.ShapeDtypeStruct((4,), jnp.float32)
        return {"double": Program("double", lambda x: 2 * x, (argument,), environment=environment)}


@pytest.fixture(autouse=True)
def zeroed():
    Counted.built = 0


@pytest.mark.parametrize("target", [None, "cpu"])
def test_the_model_is_built_once_from_composing_to_programs(target):
    ready = prepare(kn.compose(Job.Config(model=Counted.Config()), target))
    assert Counted.built == 1
    assert ready.on(ready.environment).workload.model is ready.composition.model
    assert Counted.built == 1


def test_a_model_that_overrides_change_is_built_again_as_changed():
    composition = kn.compose(Job.Config(model=Counted.Config()), "cpu", overrides=["model.input_dim=16"])
    assert Counted.built == 2
    assert prepare(composition).workload.model.config.input_dim == 16
    assert Counted.built == 2


def test_programs_by_name():
    ready = prepare(kn.compose(Job.Config(model=TinyLM.Config())))
    assert ready.program("double").lower().compile()(jnp.ones(4)).tolist() == [2.0] * 4
    with pytest.raises(UsageError, match="Job has no program 'dubble'.*did you mean 'double'.*; it has double"):
        ready.program("dubble")
