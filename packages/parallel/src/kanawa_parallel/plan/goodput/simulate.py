"""A month, attempt by attempt: hosts fail at random or at fixed times, and every second goes into one category.

Failures of hosts are independent and memoryless, so that the next one is exponential in their number. Categories are
those of a run's own time log (`productive`, `wasted`, `checkpoint_save`, …). Saves stand at multiples of each tier's
interval, so that time is a sum of floors and is inverted by bisection: an attempt costs the same to simulate whether it
takes ten steps or a million.
"""

import dataclasses
import heapq
import random
from collections.abc import Iterable, Iterator, Sequence

from kanawa_parallel.plan.goodput.scenario import Kind, Scenario, Tier

CATEGORIES = (
    "productive",
    "wasted",
    "checkpoint_save",
    "checkpoint_restore",
    "compile",
    "startup",
    "detection",
    "down",
)


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


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Seconds by category, which add up to the time simulated; how many failures, and how many steps remain."""

    seconds: dict[str, float]
    failures: int
    steps: int

    @property
    def goodput(self) -> float:
        """The share of the time in which steps were taken that count."""
        return self.seconds["productive"] / sum(self.seconds.values())


@dataclasses.dataclass(frozen=True)
class Failure:
    """One end, at so many seconds from the beginning."""

    seconds: float
    kind: Kind = "crash"


def simulate(scenario: Scenario, seed: int = 0, failures: Sequence[Failure] | None = None) -> Outcome:
    """Returns what became of the time; `failures` happen at their times instead of at random."""
    return Simulation(scenario, seed, failures).run()


def average(scenario: Scenario, months: int = 8) -> Outcome:
    """Returns the mean of several months, each with chances of its own, the same for every scenario."""
    outcomes = [simulate(scenario, month) for month in range(months)]
    mean = {name: sum(each.seconds[name] for each in outcomes) / months for name in CATEGORIES}
    failures = round(sum(each.failures for each in outcomes) / months)
    return Outcome(mean, failures, round(sum(each.steps for each in outcomes) / months))


class Simulation:
    """One month of a scenario; what `begin`, `pace` and `wait` take may be replaced by what a real run took."""

    def __init__(self, scenario: Scenario, seed: int, failures: Iterable[Failure] | None) -> None:
        self.scenario = scenario
        self.chance = random.Random(seed)
        self.fixed_failures: Iterator[Failure] | None = (
            None if failures is None else iter(sorted(failures, key=lambda f: f.seconds))
        )
        self.seconds = dict.fromkeys(CATEGORIES, 0.0)
        self.now, self.step, self.failures = 0.0, 0, 0
        # Of each attempt whose steps still count: the seconds of a step, and its last step.
        self.taken: list[tuple[float, int]] = []
        self.saved: dict[str, int] = {}
        self.standing_by = scenario.spares
        self.in_repair: list[float] = []

    def run(self) -> Outcome:
        """Returns what became of the time."""
        is_first, origin = True, None
        while self.now < self.scenario.horizon_seconds:
            failure = self._next_failure()
            until = min(failure.seconds, self.scenario.horizon_seconds)
            self._attempt(until, is_first, origin)
            if failure.seconds >= self.scenario.horizon_seconds:
                break
            self.failures += 1
            is_first = False
            origin = self._recover(failure)
        return Outcome(self.seconds, self.failures, self.step)

    def _next_failure(self) -> Failure:
        if self.fixed_failures is not None:
            # A failure while nothing ran has no effect.
            return next((each for each in self.fixed_failures if each.seconds >= self.now), Failure(float("inf")))
        wait = self.chance.expovariate(1.0 / self.scenario.system_mtbf_seconds)
        draw = self.chance.random()
        kind: Kind = "crash"
        if draw < self.scenario.host_share:
            kind = "host"
        elif draw < self.scenario.host_share + self.scenario.hang_share:
            kind = "hang"
        return Failure(self.now + wait, kind)

    def begin(self, until: float, is_first: bool, origin: Tier | None) -> None:
        """Starts an attempt, which may fail at `until`: processes, compiling, restoring."""
        s = self.scenario
        self.spend("startup", s.start_seconds, until)
        self.spend("compile", s.cold_compile_seconds if is_first else s.compile_seconds, until)
        self.spend("checkpoint_restore", 0.0 if origin is None else origin.restore_seconds, until)

    def pace(self) -> Pace:
        """Returns how the next attempt steps and saves."""
        return Pace(self.scenario.step_seconds, self.scenario.tiers)

    def wait(self, failure: Failure) -> None:
        """Spends what passes until the next processes start."""
        s, horizon = self.scenario, self.scenario.horizon_seconds
        self.spend("detection", s.hang_seconds if failure.kind == "hang" else s.detect_seconds, horizon)
        if failure.kind == "host":
            self._replace_host()
        self.spend("down", s.restart_seconds, horizon)

    def _attempt(self, until: float, is_first: bool, origin: Tier | None) -> None:
        self.begin(until, is_first, origin)
        left = until - self.now
        if left <= 0:
            return
        start, pace = self.step, self.pace()
        reached = pace.reached(start, left)
        for tier in pace.tiers:
            newest = pace.committed(tier, start, left, reached.step)
            if newest is not None:
                self.saved[tier.name] = newest
        self.taken.append((pace.step_seconds, reached.step))
        self.seconds["productive"] += reached.stepping_seconds
        self.seconds["checkpoint_save"] += reached.saving_seconds
        self.seconds["wasted"] += reached.partial_seconds
        self.step, self.now = reached.step, until

    def _recover(self, failure: Failure) -> Tier | None:
        """Takes back the lost steps, waits until there are hosts to resume, and returns the tier to restore from."""
        s, kind = self.scenario, failure.kind
        for tier in s.tiers:
            if not tier.outlives(kind):
                self.saved.pop(tier.name, None)
        there = [tier for tier in s.tiers if tier.name in self.saved]
        # Of two as new, the one that is read sooner.
        origin = min(there, key=lambda tier: (-self.saved[tier.name], tier.restore_seconds), default=None)
        back = 0 if origin is None else self.saved[origin.name]
        lost = self._take_away(back)
        self.seconds["productive"] -= lost
        self.seconds["wasted"] += lost
        self.wait(failure)
        return origin

    def _take_away(self, back: int) -> float:
        """Returns the seconds of the steps after `back`, which are lost.

        They may be of earlier attempts too, where the last one began from a place that is gone now.
        """
        lost = 0.0
        while self.step > back:
            seconds, _ = self.taken.pop()
            began = max(back, self.taken[-1][1] if self.taken else 0)
            lost += (self.step - began) * seconds
            self.step = began
            if began == back:
                self.taken.append((seconds, back))
        return lost

    def _replace_host(self) -> None:
        s, horizon = self.scenario, self.scenario.horizon_seconds
        heapq.heappush(self.in_repair, self.now + s.repair_hours * 3600.0)
        self._take_back()
        if not self.standing_by:
            self.spend("down", self.in_repair[0] - self.now, horizon)
            self._take_back()
        self.standing_by -= 1 if self.standing_by else 0
        self.spend("down", s.swap_seconds, horizon)

    def _take_back(self) -> None:
        while self.in_repair and self.in_repair[0] <= self.now:
            heapq.heappop(self.in_repair)
            self.standing_by += 1

    def spend(self, category: str, seconds: float, until: float) -> None:
        """Adds seconds to a category, up to a moment."""
        spent = max(0.0, min(seconds, until - self.now))
        self.seconds[category] += spent
        self.now += spent
