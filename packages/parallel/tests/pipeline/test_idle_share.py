"""The idle share that a plan prints is what is counted in the schedule's table, for any number of layers."""

import dataclasses

import kanawa as kn
import pytest
from kanawa.contracts import GradientStrategy, Model
from kanawa.errors import ShardingError
from kanawa_parallel.accumulate import Accumulate
from kanawa_parallel.passes import batch_cuts, idle_share
from kanawa_parallel.pipeline.one_forward_one_backward import OneForwardOneBackward
from kanawa_parallel.pipeline.places import Places
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
@pytest.mark.parametrize(("stages", "microbatches"), [(4, 4), (2, 8), (8, 3), (4, 11)])
@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("kind", ["1f1b", "zero-bubble", "dualpipe"])
def test_early_backwards_idle_as_counted_whatever_the_stack_cuts(stages, microbatches, rounds, num_layers, kind):
    split, paired = kind != "1f1b", kind == "dualpipe"
    # The forward is run again before the backward: two of four parts, or three with the weights' own.
    counted = (
        zero_bubble(stages, microbatches, rounds, paired=paired).seconds(1.0, 2.0, 1.0, num_layers)
        if split
        else one_forward_one_backward(stages, microbatches, rounds).seconds(1.0, 3.0, num_layers=num_layers)
    )
    gradients = OneForwardOneBackward.Config(microbatches=microbatches, split=split, paired=paired)
    config, model = job(99, rounds, gradients=gradients, num_layers=num_layers)
    assert idle_share(config, model, stages) == pytest.approx(counted[1] / counted[0])


@pytest.mark.parametrize("schedule", [one_forward_one_backward, zero_bubble])
@pytest.mark.parametrize(("stages", "microbatches", "rounds"), [(4, 9, 1), (4, 11, 3), (3, 2, 2), (2, 8, 2)])
@pytest.mark.parametrize("paired", [False, True])
def test_ticks_are_those_of_the_table(schedule, stages, microbatches, rounds, paired):
    times = EarlyBackwards(stages, microbatches, schedule is zero_bubble, rounds, paired)
    found = {}
    for kind, slots in (("forward", times.forward_slots), ("backward", times.backward_slots)):
        for slot, (micro, turn) in enumerate(zip(slots.microbatch, slots.turn, strict=True)):
            for stage in range(stages):
                tick = slot + stage if kind == "forward" else times.lag + slot + stages - 1 - stage
                found[kind, micro, turn, stage] = tick
    table = schedule(stages, microbatches, rounds, paired=paired).table
    counted = {
        (work.kind, work.microbatch, work.round, stage): tick
        for tick, row in enumerate(table)
        for stage, works in enumerate(row)
        for work in works
        if work.kind != "weights"
    }
    assert counted == {key: tick for key, tick in found.items() if key[1] >= 0}
    assert len(table) == max(ticks.stop for ticks in times.ranges.values())


def test_zero_bubble_waits_for_three_quarters_of_the_time():
    times = EarlyBackwards(8, 16)
    assert times.idle_fraction(Places(64, 8)) == pytest.approx(7 / 23)
    split = dataclasses.replace(times, split=True)
    assert split.idle_fraction(Places(64, 8)) == pytest.approx(21 / (64 + 21))
    twice = dataclasses.replace(split, rounds=2)
    assert twice.idle_fraction(Places(64, 8, 2)) == pytest.approx(21 / (128 + 21))


def test_chosen_layers_of_stages_leave_places_empty():
    stack = PipelinedStack.Config(num_layers=9, layer=SumBlock.Config(), microbatches=4, layers_of_runs=(1, 4, 4))
    config = Job(model=StackedLM.Config(stack=stack), gradients=Accumulate.Config(microbatches=1))
    assert idle_share(config, config.model.build(), 3) == pytest.approx(1 - 4 * 9 / (6 * 3 * 4))
    with pytest.raises(ShardingError, match=r"3 numbers that add up to 9; expected 4 \(4 stages x 1 rounds\)"):
        idle_share(config, config.model.build(), 4)


def test_four_stages_and_four_microbatches_wait_three_ticks_of_seven():
    assert idle_share(*job(4), 4) == pytest.approx(3 / 7)
    assert idle_share(*job(4), 1) == 0.0


def test_cuts_multiply_unless_the_strategy_takes_the_stacks_place():
    stack = [("model.stack.microbatches", 8)]
    assert batch_cuts(*job(8)) == [("gradients.microbatches", 1), *stack]
    assert batch_cuts(*job(8, gradients=OneForwardOneBackward.Config(microbatches=4))) == [
        ("gradients.microbatches", 4)
    ]
