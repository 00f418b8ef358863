"""Steps and saves of an attempt that nothing disturbs: how far it is after so many seconds, and what counts by then.

Saves stand at multiples of each tier's interval, so that time is a sum of floors and is inverted by bisection: an
attempt costs the same to simulate whether it takes ten steps or a million.
"""

import dataclasses

from kanawa_parallel.plan.goodput.scenario import Tier


@dataclasses.dataclass(frozen=True)
class Reached:
    """Where an attempt stands: steps complete, seconds of them, of saves, and of the step that it is in."""

    step: int
    stepping_seconds: float
    saving_seconds: float
    partial_seconds: float


@dataclasses.dataclass(frozen=True)
class Pace:
    """A step's seconds, and the tiers that are saved to."""

    step_seconds: float
    tiers: tuple[Tier, ...]

    def reached(self, start: int, seconds: float) -> Reached:
        """Returns where an attempt that began at `start` steps is after so many seconds of training."""
        # Saves are evenly spread but for one of each tier: the largest step that is complete, its own saves aside, is
        # near where it would be were they part of every step.
        pauses = [self.pause(tier) for tier in self.tiers]
        even = self.step_seconds + sum(p / tier.every_steps for p, tier in zip(pauses, self.tiers, strict=True))
        guess, off = start + int(seconds / even), int(sum(pauses) / self.step_seconds) + 2
        low, high = max(start, guess - off), guess + off
        while low < high:
            middle = (low + high + 1) // 2
            if self._before_saves(start, middle) <= seconds:
                low = middle
            else:
                high = middle - 1
        if low == start:
            return Reached(start, 0.0, 0.0, seconds)
        left = seconds - self._before_saves(start, low)
        owed = self._saves(start, low) - self._saves(start, low - 1)
        saved = self._saves(start, low - 1) + min(left, owed)
        return Reached(low, (low - start) * self.step_seconds, saved, max(0.0, left - owed))

    def committed(self, tier: Tier, start: int, seconds: float, reached: int) -> int | None:
        """Returns the newest step up to `reached` whose save to the tier counts by then; None where there is none."""
        every = tier.every_steps
        step = reached // every * every
        while step > start:
            if self._after_saves(start, step) + tier.write_seconds <= seconds:
                return step
            step -= every
        return None

    def _saves(self, start: int, step: int) -> float:
        return sum(self.pause(tier) * (step // tier.every_steps - start // tier.every_steps) for tier in self.tiers)

    def pause(self, tier: Tier) -> float:
        """Returns what a save to the tier stops training for: one that comes too soon waits for the one before it."""
        interval = tier.every_steps * self.step_seconds
        return tier.blocking_seconds + max(0.0, tier.write_seconds - interval)

    def _after_saves(self, start: int, step: int) -> float:
        return (step - start) * self.step_seconds + self._saves(start, step)

    def _before_saves(self, start: int, step: int) -> float:
        return self._after_saves(start, step - 1) + self.step_seconds if step > start else 0.0
