"""The idle share that a plan prints is what a simulated schedule idles, for each of the three."""

import kanawa as kn
import pytest
from kanawa.contracts import GradientStrategy, Model
from kanawa_parallel.accumulate import Accumulate
from kanawa_parallel.passes import batch_cuts, idle_share
from kanawa_parallel.pipeline.one_forward_one_backward import OneForwardOneBackward
from kanawa_parallel.pipeline.stack import PipelinedStack
from pipeline_schedules import gpipe, one_forward_one_backward
from stacked_model import StackedLM, SumBlock


class Job(kn.Config):
    """As much of a workload as says how batches pass."""

    model: Model.Config
    gradients: GradientStrategy.Config


def job(microbatches, rounds=1, gradients=None):
    stack = PipelinedStack.Config(num_layers=24, layer=SumBlock.Config(), microbatches=microbatches, rounds=rounds)
    model = StackedLM.Config(stack=stack)
    return Job(model=model, gradients=gradients or Accumulate.Config(microbatches=1)), model.build()


@pytest.mark.parametrize(("stages", "microbatches", "rounds"), [(4, 4, 1), (2, 8, 1), (4, 8, 3), (8, 8, 2), (1, 4, 1)])
def test_gpipe_and_interleaved_idle_as_simulated(stages, microbatches, rounds):
    total, idle = gpipe(stages, microbatches, rounds).seconds(1.0, 2.0)
    assert idle_share(*job(microbatches, rounds), stages) == pytest.approx(idle / total)


@pytest.mark.parametrize(("stages", "microbatches"), [(4, 4), (2, 8), (8, 3)])
def test_1f1b_idles_as_simulated_whatever_the_stack_says(stages, microbatches):
    total, idle = one_forward_one_backward(stages, microbatches).seconds(1.0, 3.0)
    config, model = job(99, gradients=OneForwardOneBackward.Config(microbatches=microbatches))
    assert idle_share(config, model, stages) == pytest.approx(idle / total)


def test_four_stages_and_four_microbatches_wait_three_ticks_of_seven():
    assert idle_share(*job(4), 4) == pytest.approx(3 / 7)
    assert idle_share(*job(4), 1) == 0.0


def test_cuts_multiply_unless_the_strategy_takes_the_stacks_place():
    stack = [("model.stack.microbatches", 8)]
    assert batch_cuts(*job(8)) == [("gradients.microbatches", 1), *stack]
    assert batch_cuts(*job(8, gradients=OneForwardOneBackward.Config(microbatches=4))) == [
        ("gradients.microbatches", 4)
    ]
