"""An exponential moving average of the parameters, saved with the optimizer's state and evaluated in their place."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from kanawa.config import Configurable, Partial

Flat = dict[str, jax.Array]

_PREFIX = "moving-average/"
_COUNT = f"{_PREFIX}updates"


class MovingAverage(Configurable):
    """The learner's `average` slot: `average * decay + parameters * (1 - decay)` after each update, in float32.

    The decay begins at 0.1 and rises as (1 + n) / (10 + n) after n updates until it reaches `decay`, so that the first
    parameters, which are noise, are forgotten soon.
    """

    class Config(Configurable.Config):
        decay: Partial = 0.999

    def init(self, params: Mapping[str, jax.Array]) -> Flat:
        """Returns the state before the first update: the parameters themselves, and how many updates they had."""
        averages = {f"{_PREFIX}{path}": value.astype(jnp.float32) for path, value in params.items()}
        return averages | {_COUNT: jnp.zeros((), jnp.int32)}

    def update(self, opt: Mapping[str, jax.Array], params: Mapping[str, jax.Array]) -> Flat:
        """Returns the state after an update that left these parameters."""
        count = opt[_COUNT].astype(jnp.float32)
        decay = jnp.minimum(jnp.float32(self.config.decay), (1.0 + count) / (10.0 + count))
        averages = {}
        for path, value in params.items():
            old = opt[f"{_PREFIX}{path}"]
            # As a step towards the parameters: with a decay near 1 the product form rounds the small share away.
            averages[f"{_PREFIX}{path}"] = old + (1.0 - decay) * (value.astype(jnp.float32) - old)
        return averages | {_COUNT: opt[_COUNT] + 1}

    def evaluated(self, params: Mapping[str, jax.Array], opt: Mapping[str, jax.Array]) -> Flat:
        """Returns the averages in the parameters' own dtypes."""
        return {path: opt[f"{_PREFIX}{path}"].astype(value.dtype) for path, value in params.items()}


def without_average(opt: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the optimizer's own arrays."""
    return {path: leaf for path, leaf in opt.items() if not path.startswith(_PREFIX)}
