"""`schedule`, `state-bits`, `loss-scale`: what fills slots of the learner, for any experiment."""

from typing import ClassVar

import kanawa as kn
from kanawa.contracts import ScheduleFactory
from kanawa.errors import ConfigError
from kanawa.plugins import component

from kanawa_runtime.learn.loss_scale import LossScale
from kanawa_runtime.learn.state_storage import Bfloat16States, BlockwiseStates


def learner_of(cfg: kn.Config, slot: str) -> kn.Config:
    """Returns the learner of an experiment; raises ConfigError where it has none with that slot."""
    if "learner" not in cfg.fields() or slot not in cfg.learner.fields():
        message = f"{type(cfg).__qualname__} has no learner with {slot!r}; only experiments of `kanawa train` have one"
        raise ConfigError(message)
    learner: kn.Config = cfg.learner
    return learner


class ChooseSchedule(kn.Modifier):
    """Another schedule by catalog name: `--modify 'schedule:name=inverse-square-root,values={"peak": 3e-3}'`.

    Values set on the old one carry over where the new one has the same field.
    """

    class Config(kn.Modifier.Config):
        name: str = kn.REQUIRED
        values: dict[str, bool | int | float | str | None] = {}

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the schedule in its learner."""
        own, learner = self.config, learner_of(cfg, "schedule")
        kind = component("schedules", own.name)
        if not (isinstance(kind, type) and issubclass(kind, ScheduleFactory)):
            message = f"schedule {own.name!r} is {kind!r}, expected a subclass of kanawa.contracts.ScheduleFactory"
            raise ConfigError(message)
        kn.replace(learner, target=ScheduleFactory, new=kind.Config(**own.values))
        return cfg


class StateBits(kn.Modifier):
    """Stores the optimizer's moments in 16 or 8 bits a value: `--modify state-bits:bits=8`."""

    _STORAGE: ClassVar = {16: Bfloat16States, 8: BlockwiseStates}

    class Config(kn.Modifier.Config):
        bits: kn.Size = 8

        def check(self) -> list[str]:
            """Returns what is wrong with the bits."""
            return [] if self.bits in (8, 16) else [f"bits is {self.bits}; choices: 8 (blockwise), 16 (bfloat16)"]

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the storage in its learner."""
        learner_of(cfg, "state_storage").set(state_storage=self._STORAGE[self.config.bits].Config())
        return cfg


class AddLossScale(kn.Modifier):
    """Scales the loss of float16 compute dynamically: `--modify loss-scale`."""

    class Config(kn.Modifier.Config):
        initial: kn.Positive = 2.0**15
        interval: kn.Size = 2000

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with loss scaling in its learner."""
        own = self.config
        scale = LossScale.Config(initial=own.initial, interval=own.interval)
        learner_of(cfg, "loss_scale").set(loss_scale=scale)
        return cfg
