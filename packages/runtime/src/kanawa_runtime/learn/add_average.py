"""`average`: a moving average of the parameters, for any experiment."""

import kanawa as kn

from kanawa_runtime.learn.learner_slots import learner_of
from kanawa_runtime.learn.moving_average import MovingAverage


class AddAverage(kn.Modifier):
    """Adds a moving average of the parameters, which is evaluated and served: `--modify average:decay=0.9995`.

    `others` are further decays beside it: `--modify 'average:decay=0.999,others=[0.99,0.9999]'`.
    """

    class Config(kn.Modifier.Config):
        decay: kn.config.Partial = 0.999
        others: tuple[kn.config.Partial, ...] = ()

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with an average in its learner."""
        learner_of(cfg, "average").set(average=MovingAverage.Config(decay=self.config.decay, others=self.config.others))
        return cfg
