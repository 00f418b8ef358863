"""An exponential moving average of the parameters, saved with the optimizer's state and evaluated in their place."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from kanawa.config import Configurable, Partial

Flat = dict[str, jax.Array]

_PREFIX = "moving-average"
_COUNT = f"{_PREFIX}/updates"


class MovingAverage(Configurable):
    """The learner's `average` slot: `average * decay + parameters * (1 - decay)` after each update, in float32.

    Each decay begins at 0.1 and rises as (1 + n) / (10 + n) after n updates until it reaches `decay`, so that the first
    parameters, which are noise, are forgotten soon. `others` are further decays, averaged beside it; `evaluate` says
    which one is evaluated and served (None: `decay`), and may change between a run's starts.
    """

    class Config(Configurable.Config):
        PLACEMENT = ("evaluate",)

        decay: Partial = 0.999
        others: tuple[Partial, ...] = ()
        evaluate: Partial | None = None

        def check(self) -> list[str]:
            """Returns what is wrong with the decays."""
            decays = (self.decay, *self.others)
            problems = [] if len(set(decays)) == len(decays) else [f"the decays {list(decays)} repeat one"]
            if self.evaluate is not None and self.evaluate not in decays:
                problems.append(f"evaluate ({self.evaluate}) is not averaged; choices: {', '.join(map(str, decays))}")
            return problems

    def _prefixes(self) -> dict[float, str]:
        """Returns where each decay's averages are; the first one's place doesn't depend on it."""
        cfg = self.config
        return {cfg.decay: f"{_PREFIX}/"} | {decay: f"{_PREFIX}-{decay}/" for decay in cfg.others}

    def init(self, params: Mapping[str, jax.Array]) -> Flat:
        """Returns the state before the first update: the parameters themselves, and how many updates they had."""
        averages = {
            # Copies, also of float32: the step donates each array once.
            f"{prefix}{path}": jnp.array(value, jnp.float32)
            for prefix in self._prefixes().values()
            for path, value in params.items()
        }
        return averages | {_COUNT: jnp.zeros((), jnp.int32)}

    def update(self, opt: Mapping[str, jax.Array], params: Mapping[str, jax.Array]) -> Flat:
        """Returns the state after an update that left these parameters."""
        count = opt[_COUNT].astype(jnp.float32)
        averages = {}
        for most, prefix in self._prefixes().items():
            decay = jnp.minimum(jnp.float32(most), (1.0 + count) / (10.0 + count))
            for path, value in params.items():
                old = opt[f"{prefix}{path}"]
                # As a step towards the parameters: with a decay near 1 the product form rounds the small share away.
                averages[f"{prefix}{path}"] = old + (1.0 - decay) * (value.astype(jnp.float32) - old)
        return averages | {_COUNT: opt[_COUNT] + 1}

    def evaluated(self, params: Mapping[str, jax.Array], opt: Mapping[str, jax.Array]) -> Flat:
        """Returns the averages of the decay to evaluate, in the parameters' own dtypes."""
        cfg = self.config
        prefix = self._prefixes()[cfg.decay if cfg.evaluate is None else cfg.evaluate]
        return {path: opt[f"{prefix}{path}"].astype(value.dtype) for path, value in params.items()}


def without_average(opt: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the optimizer's own arrays."""
    return {path: leaf for path, leaf in opt.items() if not path.startswith((f"{_PREFIX}/", f"{_PREFIX}-"))}
