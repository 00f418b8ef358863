"""Learning rates over a run: they count completed updates from 0 and rise linearly at first.

With a warm-up the first update has rate 0, as in optax. `decay_steps` includes the warm-up; None
means the whole run.
"""

import optax
from kanawa.config import REQUIRED
from kanawa.contracts import ScheduleFactory
from kanawa.contracts.optimizer import Schedule
from kanawa.errors import UsageError


class Constant(ScheduleFactory):
    """The rate `peak`, after a warm-up if asked."""

    class Config(ScheduleFactory.Config):
        peak: float = REQUIRED
        warmup_steps: int = 0

    def schedule(self, total_steps: int) -> Schedule:
        """Returns the schedule; the length of the run doesn't matter."""
        del total_steps
        return _warmed(self.config, optax.constant_schedule(self.config.peak))


class WarmupCosine(ScheduleFactory):
    """Falls along half a cosine from `peak` to `final_fraction` of it (SGDR, arXiv:1608.03983.

    Without restarts).
    """

    class Config(ScheduleFactory.Config):
        peak: float = REQUIRED
        warmup_steps: int = 0
        decay_steps: int | None = None
        final_fraction: float = 0.1

    def schedule(self, total_steps: int) -> Schedule:
        """Returns the schedule; after `decay_steps` the rate stays at its final value."""
        cfg = self.config
        length = _falling_steps(cfg, total_steps)
        return _warmed(cfg, optax.cosine_decay_schedule(cfg.peak, length, cfg.final_fraction))


class WarmupLinear(ScheduleFactory):
    """Falls in a straight line from `peak` to `final_fraction` of it."""

    class Config(ScheduleFactory.Config):
        peak: float = REQUIRED
        warmup_steps: int = 0
        decay_steps: int | None = None
        final_fraction: float = 0.0

    def schedule(self, total_steps: int) -> Schedule:
        """Returns the schedule; after `decay_steps` the rate stays at its final value."""
        cfg = self.config
        length = _falling_steps(cfg, total_steps)
        final = cfg.peak * cfg.final_fraction
        return _warmed(cfg, optax.linear_schedule(cfg.peak, final, length))


class WarmupStableDecay(ScheduleFactory):
    """Stays at `peak`, then falls in a straight line over the last `decay_fraction` of the run.

    MiniCPM, arXiv:2404.06395.
    """

    class Config(ScheduleFactory.Config):
        peak: float = REQUIRED
        warmup_steps: int = 0
        decay_fraction: float = 0.1
        final_fraction: float = 0.0

    def schedule(self, total_steps: int) -> Schedule:
        """Returns the schedule of a run of `total_steps`.

        Raises UsageError where the warm-up reaches the decay.
        """
        cfg = self.config
        falling = max(1, round(total_steps * cfg.decay_fraction))
        stable = total_steps - falling - cfg.warmup_steps
        if stable < 0:
            message = (
                f"{total_steps} steps have no room for a warm-up of {cfg.warmup_steps} and a decay "
                f"of {falling}: lower warmup_steps or decay_fraction, or train longer"
            )
            raise UsageError(message)
        fall = optax.linear_schedule(cfg.peak, cfg.peak * cfg.final_fraction, falling)
        return _warmed(cfg, optax.join_schedules([optax.constant_schedule(cfg.peak), fall], [stable]))


def _warmed(cfg: ScheduleFactory.Config, after: Schedule) -> Schedule:
    """Returns `after`, delayed by a linear rise from 0 over the warm-up."""
    if cfg.warmup_steps < 0:
        message = f"warmup_steps is {cfg.warmup_steps}, expected 0 or more"
        raise UsageError(message)
    if cfg.warmup_steps == 0:
        return after
    rise = optax.linear_schedule(0.0, cfg.peak, cfg.warmup_steps)
    return optax.join_schedules([rise, after], [cfg.warmup_steps])


def _falling_steps(cfg: ScheduleFactory.Config, total_steps: int) -> int:
    """Returns how many updates follow the warm-up; raises UsageError where there are none."""
    length = total_steps if cfg.decay_steps is None else cfg.decay_steps
    if length <= cfg.warmup_steps:
        message = (
            f"the schedule ends after {length} steps but its warm-up alone takes "
            f"{cfg.warmup_steps}: lower warmup_steps or raise decay_steps"
        )
        raise UsageError(message)
    return length - cfg.warmup_steps
