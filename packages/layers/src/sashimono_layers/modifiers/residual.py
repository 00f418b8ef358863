"""`dropout`, `stochastic-depth` and `bottleneck`: what happens to every branch on its way to the residual stream."""

import sashimono as sm
from sashimono.contracts import ParameterRule

from sashimono_layers.basic.dropout import Dropout
from sashimono_layers.basic.stochastic_depth import StochasticDepth
from sashimono_layers.feedforward.bottleneck import Bottleneck
from sashimono_layers.modifiers.node_fields import set_fields
from sashimono_layers.stack.residual import Residual


class ResidualDropout(sm.Modifier):
    """`dropout`: elements of every branch are dropped at `rate` in training; 0 removes dropout."""

    class Config(sm.Modifier.Config):
        rate: float = 0.1
        where: str = "**"

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with dropout on every branch."""
        own = self.config
        return set_fields(cfg, Residual, own.where, dropout=Dropout.Config(rate=own.rate) if own.rate else None)


class DropBranches(sm.Modifier):
    """`stochastic-depth`: whole branches are dropped at `rate`, row by row, in training; 0 removes it."""

    class Config(sm.Modifier.Config):
        rate: float = 0.1
        where: str = "**"

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with stochastic depth on every branch."""
        own = self.config
        depth = StochasticDepth.Config(rate=own.rate) if own.rate else None
        return set_fields(cfg, Residual, own.where, stochastic_depth=depth)


class BottleneckAdapters(sm.Modifier):
    """`bottleneck`: an adapter of `width` channels after every branch; where there is a learner, only they train."""

    class Config(sm.Modifier.Config):
        width: int = 64
        where: str = "**"

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with adapters, and with the learner's rules where there is one."""
        own = self.config
        set_fields(cfg, Residual, own.where, adapter=Bottleneck.Config(width=own.width))
        learner = vars(cfg).get("learner")
        if isinstance(learner, sm.Config) and "rules" in learner.fields():
            only = (ParameterRule(where="**", frozen=True), ParameterRule(where="**.adapter.**"))
            learner.set(rules=(*learner.rules, *only))
        return cfg
