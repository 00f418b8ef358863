"""`average`: a moving average of the parameters, for any experiment."""

import kanawa as kn
from kanawa.errors import ConfigError

from kanawa_runtime.learn.moving_average import MovingAverage


class AddAverage(kn.Modifier):
    """Has the learner keep a moving average, which is evaluated and served: `--modify average:decay=0.9995`."""

    class Config(kn.Modifier.Config):
        decay: kn.config.Partial = 0.999

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with an average in its learner."""
        if "learner" not in cfg.fields() or "average" not in cfg.learner.fields():
            message = (
                f"{type(cfg).__qualname__} has no learner with an average; only experiments of `kanawa train` have"
            )
            raise ConfigError(message)
        cfg.learner.set(average=MovingAverage.Config(decay=self.config.decay))
        return cfg
