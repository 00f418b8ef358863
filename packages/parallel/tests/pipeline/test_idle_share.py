"""The idle share that a plan prints is what is counted in the schedule's table, for any number of layers."""

import dataclasses

import kanawa as kn
import pytest
from kanawa.contracts import GradientStrategy, Model
from kanawa_parallel.accumulate import Accumulate
from kanawa_parallel.passes import batch_cuts, idle_share
from kanawa_parallel.pipeline.one_forward_one_backward import OneForwardOneBackward
from kanawa_parallel.pipeline.stack import PipelinedStack
from kanawa_parallel.pipeline.timetable import EarlyBackwards
from pipeline_schedules import gpipe, one_forward_one_backward, zero_bubble
from stacked_model import StackedLM, SumBlock


class Job(kn.Config):
    """As much of a workload as says how batches pass."""

    model: Model.Config
    gradients: GradientStrategy.Config


def job(microbatches, rounds=1, gradients=None, num_layers=24):
    stack = PipelinedStack.Config(
        num_layers=num_layers, layer=SumBlock.Config(), microbatches=microbatches, rounds=rounds
    )
    model = StackedLM.Config(stack=stack)
    return Job(model=model, gradients=gradients or Accumulate.Config(microbatches=1)), model.build()


@pytest.mark.parametrize(
    ("stages", "microbatches", "rounds", "num_layers"),
    [
        (4, 4, 1, 24),
        (2, 8, 1, 24),
        (4, 8, 3, 24),
        (8, 8, 2, 24),
        (1, 4, 1, 24),
        (8, 16, 1, 126),
        (16, 16, 1, 126),
        (8, 16, 2, 126),
        (8, 5, 3, 61),
        (4, 8, 2, 43),
        (8, 8, 1, 5),
    ],
)
@pytest.mark.parametrize("backward", [2.0, 3.1])
def test_gpipe_and_interleaved_idle_as_counted(stages, microbatches, rounds, num_layers, backward):
    total, idle = gpipe(stages, microbatches, rounds).seconds(1.0, backward, num_layers=num_layers)
    assert idle_share(*job(microbatches, rounds, num_layers=num_layers), stages) == pytest.approx(idle / total)


@pytest.mark.parametrize("num_layers", [24, 61])
@pytest.mark.parametrize(("stages", "microbatches"), [(4, 4), (2, 8), (8, 3)])
@pytest.mark.parametrize("split", [False, True])
def test_early_backwards_idle_as_counted_whatever_the_stack_says(stages, microbatches, num_layers, split):
    # The forward is run again before the backward: two of four parts, or three with the weights' own.
    counted = (
        zero_bubble(stages, microbatches).seconds(1.0, 2.0, 1.0, num_layers)
        if split
        else one_forward_one_backward(stages, microbatches).seconds(1.0, 3.0, num_layers=num_layers)
    )
    gradients = OneForwardOneBackward.Config(microbatches=microbatches, split=split)
    config, model = job(99, gradients=gradients, num_layers=num_layers)
    assert idle_share(config, model, stages) == pytest.approx(counted[1] / counted[0])


def test_zero_bubble_waits_for_three_quarters_of_the_time():
    times = EarlyBackwards(8, 16)
    assert times.idle_fraction(64) == pytest.approx(7 / 23)
    assert dataclasses.replace(times, split=True).idle_fraction(64) == pytest.approx(21 / (64 + 21))


def test_four_stages_and_four_microbatches_wait_three_ticks_of_seven():
    assert idle_share(*job(4), 4) == pytest.approx(3 / 7)
    assert idle_share(*job(4), 1) == 0.0


def test_cuts_multiply_unless_the_strategy_takes_the_stacks_place():
    stack = [("model.stack.microbatches", 8)]
    assert batch_cuts(*job(8)) == [("gradients.microbatches", 1), *stack]
    assert batch_cuts(*job(8, gradients=OneForwardOneBackward.Config(microbatches=4))) == [
        ("gradients.microbatches", 4)
    ]
