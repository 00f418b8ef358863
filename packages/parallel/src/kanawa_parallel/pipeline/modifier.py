"""`pipeline`: spreads every stack's layers over the mesh's stages, by a schedule from the catalog.

Schedules are functions (microbatches, rounds) -> PipelineParts, entry points of the group `kanawa.pipelines`.
"""

from typing import NamedTuple

import kanawa as kn
from kanawa.contracts import GradientStrategy, Stack
from kanawa.errors import ConfigError, UsageError

from kanawa_parallel.pipeline.one_forward_one_backward import OneForwardOneBackward
from kanawa_parallel.pipeline.stack import PipelinedStack
from kanawa_parallel.strategies.pipeline import Pipeline


class PipelineParts(NamedTuple):
    """What a schedule puts into a config: the stack that spreads layers, and how gradients are taken (None: as before).

    `stack` replaces every stack of equal layers; fields that it leaves at their defaults are the old stack's.
    """

    stack: Stack.Config
    gradients: GradientStrategy.Config | None = None


def gpipe(microbatches: int, rounds: int) -> PipelineParts:
    """All forwards, then all backwards."""
    if rounds > 1:
        message = f"{rounds} rounds need schedule=interleaved, 1f1b or zero-bubble; gpipe goes around once"
        raise ConfigError(message)
    return PipelineParts(PipelinedStack.Config(microbatches=microbatches))


def interleaved(microbatches: int, rounds: int) -> PipelineParts:
    """Each microbatch goes around the stages `rounds` times, at least twice, which divides the idle time by as many."""
    return PipelineParts(PipelinedStack.Config(microbatches=microbatches, rounds=max(rounds, 2)))


def one_forward_one_backward(microbatches: int, rounds: int) -> PipelineParts:
    """Each backward as soon as it can: a stage keeps inputs for few microbatches, whatever their number."""
    stack = PipelinedStack.Config(microbatches=microbatches, rounds=rounds)
    return PipelineParts(stack, OneForwardOneBackward.Config(microbatches=microbatches))


def zero_bubble(microbatches: int, rounds: int) -> PipelineParts:
    """As 1f1b, with the gradients of weights taken later, in ticks in which no stage waits."""
    stack = PipelinedStack.Config(microbatches=microbatches, rounds=rounds)
    return PipelineParts(stack, OneForwardOneBackward.Config(microbatches=microbatches, split=True))


class PipelineModifier(kn.Modifier):
    """Replaces every stack by a pipelined one and adds the strategy that puts layers on stages.

    `schedule` is gpipe, interleaved, 1f1b, zero-bubble, dualpipe or another of `kanawa list pipelines`. Stages idle
    (S - 1) / (R M + S - 1) of the time: four microbatches a stage keep that under a fifth. `layers` are the layers of
    each stage, of S x R runs in the model's order where there are rounds; empty: as even as can be.
    """

    class Config(kn.Modifier.Config):
        microbatches: kn.Size = 8
        schedule: str = "gpipe"
        rounds: kn.Size = 1
        layers: tuple[kn.Size, ...] = ()

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` pipelined."""
        uneven = [path for path, node in cfg.walk() if isinstance(node, Stack.Config) and "layer" not in node.fields()]
        if uneven:
            kinds = ", ".join(f"{path} ({type(cfg.get(path)).__qualname__})" for path in uneven)
            message = f"the modifier pipeline takes stacks of equal layers, with a field `layer`; found {kinds}"
            raise ConfigError(message)
        parts = self._parts()
        kn.replace(cfg, target=Stack, new=parts.stack)
        if parts.gradients is not None:
            cfg.set(gradients=parts.gradients)
        cfg.execution.set(strategies=(Pipeline.Config(), *cfg.execution.strategies))
        return cfg

    def _parts(self) -> PipelineParts:
        """Returns what the schedule of that name puts into a config."""
        own = self.config
        parts = kn.component("pipelines", own.schedule, asker="kanawa-parallel")(own.microbatches, own.rounds)
        if not isinstance(parts, PipelineParts):
            message = (
                f"pipeline: the schedule {own.schedule!r} returned {type(parts).__qualname__}, expected PipelineParts "
                "(a stack's config, and a gradient strategy's or None)"
            )
            raise UsageError(message)
        if own.layers:
            if not isinstance(parts.stack, PipelinedStack.Config):
                message = f"pipeline: the stack of schedule {own.schedule!r} takes no `layers`; leave them out"
                raise ConfigError(message)
            parts.stack.set(layers_of_runs=own.layers)
        return parts
