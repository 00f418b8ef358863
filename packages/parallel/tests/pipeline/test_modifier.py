"""The `pipeline` modifier: what it changes, and stacks it can't take."""

import kanawa as kn
import pytest
from kanawa.contracts import Stack
from kanawa.errors import ConfigError, UnknownNameError, UsageError
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


STRANGER = """
from kanawa_parallel.pipeline.modifier import PipelineParts
from kanawa_parallel.pipeline.stack import PipelinedStack

def doubled(microbatches, rounds):
    return PipelineParts(PipelinedStack.Config(microbatches=2 * microbatches))

def nonsense(microbatches, rounds):
    return microbatches
"""


def test_a_strangers_schedule_needs_an_entry_point_and_nothing_else(stranger):
    stranger("timetable", STRANGER, pipelines=["doubled = timetable:doubled", "nonsense = timetable:nonsense"])
    cfg = experiment(PipelinedStack.Config(num_layers=6, layer=SumBlock.Config()))
    PipelineModifier.Config(microbatches=3, schedule="doubled").build()(cfg)
    assert (cfg.model.stack.microbatches, cfg.model.stack.num_layers) == (6, 6)
    with pytest.raises(UsageError, match="the schedule 'nonsense' returned int, expected PipelineParts"):
        PipelineModifier.Config(schedule="nonsense").build()(cfg)


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"schedule": "1f1"}, UnknownNameError, "'1f1' of kind 'pipelines'.*did you mean '1f1b'"),
        ({"rounds": 2}, ConfigError, "2 rounds need schedule=interleaved, 1f1b or zero-bubble; gpipe goes around once"),
        ({"microbatches": 0}, ConfigError, r"microbatches: expected int \(at least 1\), got 0"),
    ],
)
def test_bad_settings(settings, error, said):
    cfg = experiment(PipelinedStack.Config(num_layers=6, layer=SumBlock.Config()))
    with pytest.raises(error, match=said):
        PipelineModifier.Config(**settings).build()(cfg)
