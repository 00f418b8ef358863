"""`squared-relu`: every feed-forward of a model becomes a squared-ReLU one."""

import kanawa as kn
from kanawa.contracts import FeedForward

from kanawa_example_layer.squared_relu import SquaredReLU


class UseSquaredReLU(kn.Modifier):
    """Replaces whatever plays the FeedForward role; `hidden_dim` carries over."""

    class Config(kn.Modifier.Config):
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every feed-forward under `where` replaced."""
        kn.replace(cfg, target=FeedForward, new=SquaredReLU.Config(), where=self.config.where)
        return cfg
