"""Stochastic gradient descent, with momentum if asked."""

from collections.abc import Mapping

import optax
from kanawa.arrays.spec import ParamSpec
from kanawa.config import NonNegative, Partial
from kanawa.contracts.optimizer import Schedule

from kanawa_runtime.learn.scheduled import ScheduledOptimizer, decay_by_spec, rate_link


class SGD(ScheduledOptimizer):
    """Follows the gradient, or its running sum where `momentum` is not 0; the baseline others are tested against."""

    class Config(ScheduledOptimizer.Config):
        momentum: Partial = 0.0
        nesterov: bool = False
        weight_decay: NonNegative = 0.0

    def transformation(self, specs: Mapping[str, ParamSpec], learning_rate: Schedule) -> optax.GradientTransformation:
        """Returns the transformation; its state is "momentum/trace/…" and "rate/count"."""
        cfg = self.config
        momentum = optax.trace(cfg.momentum, cfg.nesterov) if cfg.momentum else optax.identity()
        return optax.named_chain(
            ("momentum", momentum),
            ("decay", decay_by_spec(specs, cfg.weight_decay)),
            rate_link(specs, learning_rate),
        )
