"""Learning rates over a run: they count completed updates from 0 and rise linearly at first.

With a warm-up the first update has rate 0, as in optax. It takes `warmup_steps`, or where those are 0 the share
`warmup_fraction` of the run, which fits a run of any length. `decay_steps` includes the warm-up; None means the
whole run.
"""

import abc
from typing import Any

import jax.numpy as jnp
import optax
from kanawa.config import REQUIRED, Count, Fraction, Partial, Size, Strength
from kanawa.contracts import ScheduleFactory
from kanawa.contracts.optimizer import Schedule
from kanawa.errors import UsageError


class WarmedUp(ScheduleFactory):
    """What schedules share: a rise to `peak`."""

    class Config(ScheduleFactory.Config):
        peak: Strength = REQUIRED
        warmup_steps: Count = 0
        warmup_fraction: Partial = 0.0

    def _warmup(self, total_steps: int) -> int:
        steps: int = self.config.warmup_steps or round(self.config.warmup_fraction * total_steps)
        return steps

    def _warmed(self, warmup: int, after: Schedule) -> Schedule:
        """Returns `after`, delayed by a linear rise from 0 over the warm-up."""
        if warmup == 0:
            return after
        joined: Schedule = optax.join_schedules([optax.linear_schedule(0.0, self.config.peak, warmup), after], [warmup])
        return joined


class Constant(WarmedUp):
    """The rate `peak`, after a warm-up if asked."""

    def schedule(self, total_steps: int) -> Schedule:
        """Returns the schedule; the length of the run matters to a warm-up by fraction alone."""
        return self._warmed(self._warmup(total_steps), optax.constant_schedule(self.config.peak))


class Falling(WarmedUp):
    """What falls from `peak` to `final_fraction` of it over the rest of the run."""

    class Config(WarmedUp.Config):
        decay_steps: Size | None = None
        final_fraction: Fraction = 0.0

    @abc.abstractmethod
    def _fall(self, steps: int) -> Schedule:
        """Returns the schedule after the warm-up."""

    def schedule(self, total_steps: int) -> Schedule:
        """Returns the schedule; after `decay_steps` the rate stays. Raises UsageError where the warm-up takes all."""
        cfg, warmup = self.config, self._warmup(total_steps)
        length = total_steps if cfg.decay_steps is None else cfg.decay_steps
        if length <= warmup:
            message = (
                f"the schedule ends after {length} steps but its warm-up alone takes {warmup}: "
                "lower warmup_steps (or warmup_fraction) or raise decay_steps"
            )
            raise UsageError(message)
        return self._warmed(warmup, self._fall(length - warmup))


class WarmupCosine(Falling):
    """Falls along half a cosine from `peak` to `final_fraction` of it (SGDR, arXiv:1608.03983, without restarts)."""

    class Config(Falling.Config):
        final_fraction: Fraction = 0.1

    def _fall(self, steps: int) -> Schedule:
        fall: Schedule = optax.cosine_decay_schedule(self.config.peak, steps, self.config.final_fraction)
        return fall


class WarmupLinear(Falling):
    """Falls in a straight line from `peak` to `final_fraction` of it."""

    def _fall(self, steps: int) -> Schedule:
        fall: Schedule = optax.linear_schedule(self.config.peak, self.config.peak * self.config.final_fraction, steps)
        return fall


class WarmupStableDecay(WarmedUp):
    """Stays at `peak`, then falls in a straight line over the last `decay_fraction` of the run (arXiv:2404.06395)."""

    class Config(WarmedUp.Config):
        decay_fraction: Fraction = 0.1
        final_fraction: Fraction = 0.0

    def schedule(self, total_steps: int) -> Schedule:
        """Returns the schedule of a run of `total_steps`; raises UsageError where the warm-up reaches the decay."""
        cfg, warmup = self.config, self._warmup(total_steps)
        falling = max(1, round(total_steps * cfg.decay_fraction))
        stable = total_steps - falling - warmup
        if stable < 0:
            message = (
                f"{total_steps} steps have no room for a warm-up of {warmup} and a decay of {falling}: lower "
                "warmup_steps, warmup_fraction or decay_fraction, or train longer"
            )
            raise UsageError(message)
        fall = optax.linear_schedule(cfg.peak, cfg.peak * cfg.final_fraction, falling)
        return self._warmed(warmup, optax.join_schedules([optax.constant_schedule(cfg.peak), fall], [stable]))


class InverseSquareRoot(WarmedUp):
    """Falls as 1 / sqrt(updates) after the warm-up, to no end in sight; a straight line takes the last part to 0.

    `peak` x sqrt(timescale / (timescale + updates since the warm-up)) (arXiv:1706.03762, section 5.3, where the
    timescale is the warm-up, as it is by default). Over the last `decay_fraction` of the run a factor falls from 1 to
    `final_fraction` (arXiv:2106.04560, appendix B).
    """

    class Config(WarmedUp.Config):
        timescale: Size | None = None
        decay_fraction: Partial = 0.0
        final_fraction: Fraction = 0.0

    def schedule(self, total_steps: int) -> Schedule:
        """Returns the schedule of a run of `total_steps`; raises UsageError where the warm-up reaches the decay."""
        cfg, warmup = self.config, self._warmup(total_steps)
        falling = round(total_steps * cfg.decay_fraction)
        start = total_steps - falling
        if start < warmup:
            message = (
                f"{total_steps} steps have no room for a warm-up of {warmup} and a decay of {falling}: lower "
                "warmup_steps, warmup_fraction or decay_fraction, or train longer"
            )
            raise UsageError(message)
        timescale = float(cfg.timescale or max(warmup, 1))

        def fall(count: Any) -> Any:
            rate = cfg.peak * jnp.sqrt(timescale / (timescale + jnp.asarray(count, jnp.float32)))
            if not falling:
                return rate
            done = jnp.clip((count + warmup - start) / falling, 0.0, 1.0)
            return rate * (1.0 - (1.0 - cfg.final_fraction) * done)

        return self._warmed(warmup, fall)
