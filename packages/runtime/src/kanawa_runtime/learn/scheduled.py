"""Optimizers whose last transform reads the schedule and counts updates; all of ours."""

from collections.abc import Mapping

import jax
import optax
from kanawa.arrays.spec import ParamSpec
from kanawa.contracts import Optimizer
from kanawa.contracts.optimizer import Schedule

from kanawa_runtime.learn.transforms import rate_by_spec

_RATE = "rate"


class ScheduledOptimizer(Optimizer):
    """Derive from it and put `rate_link` into the named chain; the learning rate is then reported."""

    def num_updates(self, opt: Mapping[str, jax.Array]) -> jax.Array | None:
        """Returns the count in `rate_link`'s state."""
        return opt.get(f"{_RATE}/count")


def rate_link(specs: Mapping[str, ParamSpec], learning_rate: Schedule) -> tuple[str, optax.GradientTransformation]:
    """Returns the named transform that multiplies by the learning rate; its state is "rate/count"."""
    return _RATE, rate_by_spec(specs, learning_rate)
