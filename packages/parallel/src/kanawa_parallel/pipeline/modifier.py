"""`pipeline`: spreads every stack's layers over the mesh's stages, by a schedule from the catalog."""

import kanawa as kn
from kanawa.contracts import Stack
from kanawa.errors import ConfigError, UsageError

from kanawa_parallel.pipeline.named import PipelineParts
from kanawa_parallel.strategies.pipeline import Pipeline

#: The catalog's kind: functions (microbatches, rounds) -> PipelineParts, entry points of the group `kanawa.pipelines`.
KIND = "pipelines"


class PipelineModifier(kn.Modifier):
    """Replaces every stack by a pipelined one and adds the strategy that puts layers on stages.

    `schedule` is gpipe, interleaved, 1f1b or another of `kanawa list pipelines`. Stages idle (S - 1) / (M + S - 1) of
    the time: four microbatches a stage keep that under a fifth.
    """

    class Config(kn.Modifier.Config):
        microbatches: kn.Size = 8
        schedule: str = "gpipe"
        rounds: kn.Size = 1

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
        parts = kn.component(KIND, own.schedule)(own.microbatches, own.rounds)
        if not isinstance(parts, PipelineParts):
            message = (
                f"pipeline: the schedule {own.schedule!r} returned {type(parts).__qualname__}, expected PipelineParts "
                "(a stack's config, and a gradient strategy's or None)"
            )
            raise UsageError(message)
        return parts
