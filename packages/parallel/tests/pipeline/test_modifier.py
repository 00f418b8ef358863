"""The `pipeline` modifier: what it changes, and stacks it can't take."""

import kanawa as kn
import pytest
from kanawa.contracts import Stack
from kanawa.errors import ConfigError
from kanawa_parallel.pipeline.modifier import PipelineModifier
from kanawa_parallel.pipeline.one_forward_one_backward import OneForwardOneBackward
from kanawa_parallel.pipeline.stack import PipelinedStack
from kanawa_parallel.strategies.pipeline import Pipeline
from stacked_model import StackedLM, SumBlock


class Holder(kn.Config):
    strategies: tuple[kn.Configurable.Config, ...] = ()


class Experiment(kn.Config):
    model: kn.Configurable.Config
    gradients: kn.Configurable.Config | None = None
    execution: Holder = Holder()


class EveryOther(Stack):
    """Has no field `layer`."""

    def forward(self, x, sequences, caches=None):
        return x, caches

    def cache_spec(self, rows, length, dtype):
        return ()

    def unstacked(self, params):
        return params


def experiment(stack):
    return Experiment(model=StackedLM.Config(stack=stack))


def test_layers_move_into_a_pipelined_stack():
    cfg = experiment(PipelinedStack.Config(num_layers=6, layer=SumBlock.Config()))
    PipelineModifier.Config(microbatches=12, schedule="1f1b").build()(cfg)
    assert cfg.model.stack == PipelinedStack.Config(num_layers=6, layer=SumBlock.Config(), microbatches=12)
    assert cfg.gradients == OneForwardOneBackward.Config(microbatches=12)
    assert cfg.execution.strategies == (Pipeline.Config(),)


def test_interleaving_has_at_least_two_rounds():
    cfg = experiment(PipelinedStack.Config(num_layers=6, layer=SumBlock.Config()))
    PipelineModifier.Config(schedule="interleaved").build()(cfg)
    assert cfg.model.stack.rounds == 2
    assert cfg.gradients is None


def test_a_stack_without_equal_layers_is_named():
    with pytest.raises(ConfigError, match=r"takes stacks of equal layers.*model\.stack \(EveryOther\.Config\)"):
        PipelineModifier.Config().build()(experiment(EveryOther.Config(num_layers=2)))


def test_bad_settings():
    with pytest.raises(ConfigError, match="schedule is 'dualpipe', expected one of gpipe, 1f1b, interleaved"):
        PipelineModifier.Config(schedule="dualpipe").freeze()
