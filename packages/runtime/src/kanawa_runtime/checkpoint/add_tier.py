"""`tier`: a quick place for checkpoints beside the run's own, for any experiment."""

import kanawa as kn
from kanawa.errors import ConfigError

from kanawa_runtime.checkpoint.background import BackgroundCheckpointer
from kanawa_runtime.checkpoint.tiers import Tier


class AddTier(kn.Modifier):
    """Adds a tier to the run's checkpointer.

    `--modify tier:place=ram:///kanawa,every_steps=10`. A place that is there already is configured anew.
    """

    class Config(kn.Modifier.Config):
        place: str = kn.REQUIRED
        every_steps: kn.Size = 10
        keep_last: kn.Size = 2

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the tier as the last one."""
        if "checkpointer" not in cfg.fields():
            message = (
                f"{type(cfg).__qualname__} has no checkpointer slot: only what `kanawa train` runs has checkpoints"
            )
            raise ConfigError(message)
        chosen = cfg.checkpointer
        if not isinstance(chosen, BackgroundCheckpointer.Config):
            message = f"{type(chosen).__qualname__} has no tiers; expected auto, orbax or sharded as the checkpointer"
            raise ConfigError(message)
        own = self.config
        others = tuple(tier.clone() for tier in chosen.tiers if tier.place != own.place)
        new = Tier(place=own.place, every_steps=own.every_steps, keep_last=own.keep_last)
        chosen.set(tiers=(*others, new))
        cfg.set(checkpointer=chosen)
        return cfg
