"""`pipeline`: spreads every stack's layers over the mesh's stages."""

import kanawa as kn
from kanawa.contracts import Stack
from kanawa.errors import ConfigError

from kanawa_parallel.pipeline.one_forward_one_backward import OneForwardOneBackward
from kanawa_parallel.pipeline.stack import PipelinedStack
from kanawa_parallel.strategies.pipeline import Pipeline

#: Schedules by name: rounds are free where the name says so.
_SCHEDULES = ("gpipe", "1f1b", "interleaved")


class PipelineModifier(kn.Modifier):
    """Replaces every stack by a pipelined one and adds the strategy that puts layers on stages.

    Stages idle (S - 1) / (M + S - 1) of the time: four microbatches a stage keep that under a fifth.
    """

    class Config(kn.Modifier.Config):
        microbatches: int = 8
        schedule: str = "gpipe"
        rounds: int = 1

        def check(self) -> list[str]:
            """Returns what is wrong with schedule and counts."""
            problems = []
            if self.schedule not in _SCHEDULES:
                problems.append(f"schedule is {self.schedule!r}, expected one of {', '.join(_SCHEDULES)}")
            if self.rounds > 1 and self.schedule != "interleaved":
                problems.append(f"{self.rounds} rounds need schedule=interleaved, found {self.schedule}")
            if self.microbatches < 1 or self.rounds < 1:
                problems.append(f"microbatches ({self.microbatches}) and rounds ({self.rounds}) must be at least 1")
            return problems

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` pipelined."""
        own = self.config
        uneven = [path for path, node in cfg.walk() if isinstance(node, Stack.Config) and "layer" not in node.fields()]
        if uneven:
            kinds = ", ".join(f"{path} ({type(cfg.get(path)).__qualname__})" for path in uneven)
            message = f"the modifier pipeline takes stacks of equal layers, with a field `layer`; found {kinds}"
            raise ConfigError(message)
        rounds = max(own.rounds, 2) if own.schedule == "interleaved" else 1
        kn.replace(cfg, target=Stack, new=PipelinedStack.Config(microbatches=own.microbatches, rounds=rounds))
        if own.schedule == "1f1b":
            cfg.set(gradients=OneForwardOneBackward.Config(microbatches=own.microbatches))
        cfg.execution.set(strategies=(Pipeline.Config(), *cfg.execution.strategies))
        return cfg
