"""Stochastic gradient descent, with momentum if asked."""

from collections.abc import Mapping

import optax
from kanawa.arrays.spec import ParamSpec
from kanawa.config import NonNegative, Partial

from kanawa_runtime.learn.scheduled import ScheduledOptimizer


class SGD(ScheduledOptimizer):
    """Follows the gradient, or its running sum where `momentum` is not 0; the baseline others are tested against."""

    class Config(ScheduledOptimizer.Config):
        momentum: Partial = 0.0
        nesterov: bool = False
        weight_decay: NonNegative = 0.0

    @property
    def moments(self) -> dict[str, bool]:
        """The momentum."""
        return {"momentum/trace": False}

    def links(self, specs: Mapping[str, ParamSpec]) -> list[tuple[str, optax.GradientTransformation]]:
        """Returns the transform; the state is "momentum/trace/…" and "rate/count"."""
        cfg = self.config
        momentum = optax.trace(cfg.momentum, cfg.nesterov) if cfg.momentum else optax.identity()
        return [("momentum", momentum)]
