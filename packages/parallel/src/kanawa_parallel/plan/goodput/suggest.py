"""What would lose less: how often to save where, how many hosts to keep standing by, which tiers to have.

Everything is simulated under the same chances, so that two settings differ by what they are and not by luck.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator

from kanawa_parallel.plan.goodput.scenario import Scenario, Tier
from kanawa_parallel.plan.goodput.simulate import Outcome, average

#: Of one interval to the next that is tried, first over all of them and then beside the best.
_RATIO, _BESIDE = 1.7, (0.77, 1.3)
_MONTHS = 8
#: A spare that brings less than this share of a host's own work isn't worth a host.
_MOST_SPARE_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Interval:
    """A tier's interval in steps: as asked for, as simulated to be best, and by the formulas."""

    tier: str
    asked: int
    best: int
    young: int
    daly: int


@dataclasses.dataclass(frozen=True)
class Suggestions:
    """What the simulation found: the best intervals and their goodput, spares by goodput, sets of tiers by goodput."""

    intervals: tuple[Interval, ...]
    scenario: Scenario
    outcome: Outcome
    spares: tuple[tuple[int, float, float], ...]
    best_spares: int
    tiers: tuple[tuple[tuple[str, ...], float], ...]


def suggestions(scenario: Scenario, months: int = _MONTHS) -> Suggestions:
    """Returns the best settings for the scenario's hosts, failures and costs."""
    tuned = best_intervals(scenario, months)
    rows = tuple(_spare_rows(tuned, months))
    best_spares = max(rows, key=lambda row: row[2])[0]
    equipped = dataclasses.replace(tuned, spares=best_spares)
    sets = sorted(_tier_sets(equipped, months), key=lambda row: -row[1])
    intervals = tuple(
        Interval(asked.name, asked.every_steps, best.every_steps, *_by_formula(scenario, best))
        for asked, best in zip(scenario.tiers, tuned.tiers, strict=True)
    )
    return Suggestions(intervals, equipped, average(equipped, months), rows, best_spares, tuple(sets))


def best_intervals(scenario: Scenario, months: int = _MONTHS) -> Scenario:
    """Returns the scenario with each tier's interval where the simulation loses least, the others held."""
    best = scenario
    # Tiers hang on each other: how often to write to the store depends on how much the others already save.
    for _ in range(2 if len(scenario.tiers) > 1 else 1):
        for index in range(len(scenario.tiers)):
            coarse = _quickest(best, index, _tried(best, index), months)
            around = (max(1, round(coarse.tiers[index].every_steps * factor)) for factor in (1.0, *_BESIDE))
            best = _quickest(best, index, around, months)
    return best


def _quickest(scenario: Scenario, index: int, tried: Iterable[int], months: int) -> Scenario:
    candidates = [_with_interval(scenario, index, steps) for steps in dict.fromkeys(tried)]
    return max(candidates, key=lambda each: average(each, months).goodput)


def _tried(scenario: Scenario, index: int) -> Iterator[int]:
    tier = scenario.tiers[index]
    # A save that comes before the last one is written waits for it.
    least = max(1, round(tier.write_seconds / scenario.step_seconds))
    longest = max(4.0 * young(_cost(scenario, tier), scenario.system_mtbf_seconds) / scenario.step_seconds, 2.0 * least)
    steps = float(least)
    while steps <= longest:
        yield round(steps)
        steps = max(steps + 1.0, steps * _RATIO)


def _cost(scenario: Scenario, tier: Tier) -> float:
    """Returns what one save of a tier takes from training; a thousandth of a step where it takes nothing."""
    return max(tier.blocking_seconds, scenario.step_seconds / 1000.0)


def _with_interval(scenario: Scenario, index: int, steps: int) -> Scenario:
    tiers = list(scenario.tiers)
    tiers[index] = dataclasses.replace(tiers[index], every_steps=steps)
    return dataclasses.replace(scenario, tiers=tuple(tiers))


def _by_formula(scenario: Scenario, tier: Tier) -> tuple[int, int]:
    cost, mtbf = _cost(scenario, tier), scenario.system_mtbf_seconds
    first, second = (max(1, round(formula(cost, mtbf) / scenario.step_seconds)) for formula in (young, daly))
    return first, second


def _spare_rows(scenario: Scenario, months: int) -> Iterator[tuple[int, float, float]]:
    """Yields (spares, goodput, goodput for each host that is paid for) until more of them cost more than they bring."""
    best, worse = 0.0, 0
    for spares in range(round(scenario.hosts * _MOST_SPARE_SHARE) + 2):
        goodput = average(dataclasses.replace(scenario, spares=spares), months).goodput
        paid = goodput * scenario.hosts / (scenario.hosts + spares)
        yield spares, goodput, paid
        worse = 0 if paid > best else worse + 1
        best = max(best, paid)
        if worse == 3 or scenario.host_share == 0.0:
            return


def _tier_sets(scenario: Scenario, months: int) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yields sets of tiers, one of which outlives everything, with their goodput at their own best intervals."""
    for count in range(1, len(scenario.tiers) + 1):
        for tiers in itertools.combinations(scenario.tiers, count):
            if any(tier.survives == "all" for tier in tiers):
                alone = best_intervals(dataclasses.replace(scenario, tiers=tiers), months)
                yield tuple(tier.name for tier in tiers), average(alone, months).goodput


def young(cost_seconds: float, mtbf_seconds: float) -> float:
    """Returns the seconds of work between saves that lose least, to first order (Young, CACM 17:9, 1974)."""
    return math.sqrt(2.0 * cost_seconds * mtbf_seconds)


def daly(cost_seconds: float, mtbf_seconds: float) -> float:
    """Returns the same to higher order (Daly, FGCS 22:3, 2006, equation 37)."""
    if cost_seconds >= 2.0 * mtbf_seconds:
        return mtbf_seconds
    ratio = cost_seconds / (2.0 * mtbf_seconds)
    return young(cost_seconds, mtbf_seconds) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - cost_seconds
