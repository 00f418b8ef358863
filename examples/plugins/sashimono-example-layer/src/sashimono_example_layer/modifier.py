"""`squared-relu`: every feed-forward of a model becomes a squared-ReLU one."""

import sashimono as sm
from sashimono.contracts import FeedForward

from sashimono_example_layer.squared_relu import SquaredReLU


class UseSquaredReLU(sm.Modifier):
    """Replaces whatever plays the FeedForward role; `hidden_dim` carries over."""

    class Config(sm.Modifier.Config):
        where: str = "**"

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with every feed-forward under `where` replaced."""
        sm.replace(cfg, target=FeedForward, new=SquaredReLU.Config(), where=self.config.where)
        return cfg
