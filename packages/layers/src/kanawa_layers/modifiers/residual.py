"""`dropout`, `stochastic-depth` and `bottleneck`: changes of every branch before the residual stream."""

from typing import Any

import kanawa as kn

from kanawa_layers.basic.dropout import Dropout, StochasticDepth
from kanawa_layers.feedforward.plain import Bottleneck
from kanawa_layers.modifiers.fields import SetFields, set_fields
from kanawa_layers.modifiers.weights import train_adapters_only
from kanawa_layers.stack.residual_blocks import Residual


class ResidualDropout(SetFields):
    """`dropout`: elements of every branch are dropped at `rate` in training; 0 removes dropout."""

    class Config(SetFields.Config):
        rate: kn.Partial = 0.1

    target = Residual

    def values(self) -> dict[str, Any]:
        """Returns the dropout."""
        return {"dropout": Dropout.Config(rate=self.config.rate) if self.config.rate else None}


class DropBranches(SetFields):
    """`stochastic-depth`: whole branches are dropped at `rate`, row by row, in training; 0 removes it."""

    class Config(SetFields.Config):
        rate: kn.Partial = 0.1

    target = Residual

    def values(self) -> dict[str, Any]:
        """Returns the stochastic depth."""
        return {"stochastic_depth": StochasticDepth.Config(rate=self.config.rate) if self.config.rate else None}


class BottleneckAdapters(kn.Modifier):
    """`bottleneck`: an adapter of `width` channels after every branch; the learner, if any, trains only them."""

    class Config(kn.Modifier.Config):
        width: kn.Size = 64
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with adapters, and with the learner's rules where there is one."""
        own = self.config
        set_fields(cfg, Residual, own.where, adapter=Bottleneck.Config(width=own.width))
        return train_adapters_only(cfg)
