"""Pipeline schedules by name, one function each: entry points of the group `kanawa.pipelines`."""

from typing import NamedTuple

from kanawa.contracts import GradientStrategy, Stack
from kanawa.errors import ConfigError

from kanawa_parallel.pipeline.one_forward_one_backward import OneForwardOneBackward
from kanawa_parallel.pipeline.stack import PipelinedStack


class PipelineParts(NamedTuple):
    """What a schedule puts into a config: the stack that spreads layers, and how gradients are taken (None: as before).

    `stack` replaces every stack of equal layers; fields that it leaves at their defaults are the old stack's.
    """

    stack: Stack.Config
    gradients: GradientStrategy.Config | None = None


def gpipe(microbatches: int, rounds: int) -> PipelineParts:
    """All forwards, then all backwards."""
    _once("gpipe", rounds)
    return PipelineParts(PipelinedStack.Config(microbatches=microbatches))


def interleaved(microbatches: int, rounds: int) -> PipelineParts:
    """Each microbatch goes around the stages `rounds` times, at least twice, which divides the idle time by as many."""
    return PipelineParts(PipelinedStack.Config(microbatches=microbatches, rounds=max(rounds, 2)))


def one_forward_one_backward(microbatches: int, rounds: int) -> PipelineParts:
    """Each backward as soon as it can: a stage keeps inputs for few microbatches."""
    _once("1f1b", rounds)
    stack = PipelinedStack.Config(microbatches=microbatches)
    return PipelineParts(stack, OneForwardOneBackward.Config(microbatches=microbatches))


def _once(name: str, rounds: int) -> None:
    if rounds > 1:
        message = f"{rounds} rounds need schedule=interleaved, and schedule is {name}, which goes around once"
        raise ConfigError(message)
