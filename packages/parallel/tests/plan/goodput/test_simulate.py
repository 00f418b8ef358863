"""The simulated month against closed forms, against a walk step by step, and against what must hold of any month."""

import dataclasses
import math
import random

import pytest
from kanawa_parallel.plan.goodput.scenario import Scenario, Tier
from kanawa_parallel.plan.goodput.simulate import Failure, Pace, average, simulate
from kanawa_parallel.plan.goodput.suggest import best_intervals, daly, suggestions, young

NOTHING_ELSE = dict.fromkeys(
    ("detect_seconds", "restart_seconds", "start_seconds", "compile_seconds", "cold_compile_seconds"), 0.0
)
STORE = Tier("store", 600, 30.0, 0.0, 60.0)
PLAIN = Scenario(hosts=100, step_seconds=1.0, mtbf_hours=1000.0, tiers=(STORE,), days=200.0, **NOTHING_ELSE)


@pytest.mark.parametrize("every", [60, 600, 3000])
def test_one_tier_agrees_with_dalys_formula(every):
    scenario = dataclasses.replace(PLAIN, tiers=(dataclasses.replace(STORE, every_steps=every),))
    expected = expected_goodput(every, 30.0, 60.0, scenario.system_mtbf_seconds)
    assert average(scenario, months=8).goodput == pytest.approx(expected, rel=0.005)


def expected_goodput(work_seconds: float, cost_seconds: float, restart_seconds: float, mtbf_seconds: float) -> float:
    """Returns the share of time in work that counts, saving every `work_seconds` of it (Daly 2006, equation 20).

    Failures may strike while saving and while restarting, and are exponential.
    """
    segment = (work_seconds + cost_seconds) / mtbf_seconds
    wall = mtbf_seconds * math.exp(restart_seconds / mtbf_seconds) * math.expm1(segment)
    return work_seconds / wall


def test_the_best_interval_is_where_the_formulas_say():
    best = best_intervals(PLAIN, months=4).tiers[0].every_steps
    mtbf = PLAIN.system_mtbf_seconds
    assert young(30.0, mtbf) / 1.7 < best < young(30.0, mtbf) * 1.7
    # Beside the optimum the curve is flat: what counts is that nothing is lost to the formula's own interval.
    assert expected_goodput(best, 30.0, 60.0, mtbf) > expected_goodput(daly(30.0, mtbf), 30.0, 60.0, mtbf) - 0.002


def walked(pace, start, seconds):
    """Progress step by step, as `Pace` says it without walking."""
    step, stepping, saving, committed, at = start, 0.0, 0.0, {}, 0.0
    while at + pace.step_seconds <= seconds:
        at, step, stepping = at + pace.step_seconds, step + 1, stepping + pace.step_seconds
        due = [tier for tier in pace.tiers if step % tier.every_steps == 0]
        pause = min(sum(map(pace.pause, due)), seconds - at)
        at, saving = at + pause, saving + pause
        for tier in due:
            committed[tier.name] = [*committed.get(tier.name, []), (at + tier.write_seconds, step)]
    newest = {
        name: max((step for done, step in saves if done <= seconds), default=None) for name, saves in committed.items()
    }
    return step, stepping, saving, seconds - at, newest


def test_progress_is_what_a_walk_over_every_step_gives():
    chance = random.Random(0)
    for _ in range(300):
        # Binary fractions, so that neither way of adding up rounds.
        tiers = tuple(
            Tier(name, chance.randrange(1, 40), chance.randrange(64) / 16, chance.randrange(400) / 16, 0.0)
            for name in ("a", "b")[: chance.randrange(3)]
        )
        pace = Pace(chance.randrange(1, 64) / 16, tiers)
        start, seconds = chance.randrange(100), chance.randrange(16 * 400) / 16
        step, stepping, saving, partial, newest = walked(pace, start, seconds)
        reached = pace.reached(start, seconds)
        assert dataclasses.astuple(reached) == pytest.approx((step, stepping, saving, partial))
        for tier in tiers:
            # A save that stands where the time ends has stopped training, and may not be whole yet.
            if saving == pytest.approx(reached.saving_seconds) and partial > 0:
                assert pace.committed(tier, start, seconds, reached.step) == newest.get(tier.name)


def test_failures_at_given_times_lose_what_was_not_saved_by_then():
    tiers = (Tier("store", 10, 1.0, 4.0, 5.0),)
    scenario = dataclasses.replace(PLAIN, tiers=tiers, days=100 / 86400, start_seconds=2.0, detect_seconds=3.0)
    # Steps from 2 s on; the save of step 10 ends at 13 s and counts from 17 s: at 16 s all is lost, at 40 s all but 3.
    month = simulate(scenario, failures=[Failure(16.0), Failure(40.0), Failure(41.0)])
    assert month.failures == 2, "one that strikes while nothing runs strikes nobody"
    first = 16.0 - 2.0 - 1.0
    assert month.seconds["detection"] == 6.0 and month.seconds["checkpoint_restore"] == 5.0
    # The second attempt steps from 21 s: 10 steps, a save, 8 of which the last is cut short when it fails.
    assert month.seconds["wasted"] == pytest.approx(first + (40.0 - 21.0 - 11.0))
    assert sum(month.seconds.values()) == pytest.approx(100.0)
    assert month.steps == 10 + round(month.seconds["productive"] - 10.0)


def test_a_lost_host_takes_its_tier_along_and_waits_for_another():
    tiers = (Tier("memory", 1, 0.0, 0.0, 0.5, "process"), Tier("store", 50, 0.0, 0.0, 0.5))
    scenario = dataclasses.replace(PLAIN, tiers=tiers, days=1000 / 86400, repair_hours=0.05, swap_seconds=7.0)
    crash, host = (simulate(scenario, failures=[Failure(99.5, kind)]) for kind in ("crash", "host"))
    assert (crash.seconds["wasted"], crash.seconds["down"]) == (0.5, 0.0)
    assert (host.seconds["wasted"], host.seconds["down"]) == (49.5, 0.05 * 3600 + 7.0)
    spare = simulate(dataclasses.replace(scenario, spares=1), failures=[Failure(99.5, "host")])
    assert spare.seconds["down"] == 7.0
    hang = simulate(dataclasses.replace(scenario, hang_seconds=11.0), failures=[Failure(99.5, "hang")])
    assert hang.seconds["detection"] == 11.0


def test_a_fall_back_behind_an_earlier_restart_wastes_what_that_one_had_kept():
    tiers = (Tier("memory", 10, 0.0, 0.0, 0.0, "process"), Tier("store", 1000, 0.0, 0.0, 0.0))
    scenario = dataclasses.replace(PLAIN, tiers=tiers, days=100 / 86400, swap_seconds=0.0, spares=1)
    month = simulate(scenario, failures=[Failure(35.0, "crash"), Failure(50.0, "host")])
    # 30 steps kept in memory at 35 s, 40 at 50 s: all gone with the host.
    assert month.seconds["wasted"] == 50.0
    assert (month.steps, month.seconds["productive"]) == (50, 50.0)


def test_suggestions_name_intervals_spares_and_tiers():
    tiers = (Tier("local", 10, 0.5, 2.0, 5.0, "process"), Tier("store", 5000, 10.0, 60.0, 60.0))
    scenario = dataclasses.replace(PLAIN, tiers=tiers, days=30.0, host_share=0.5, repair_hours=24.0)
    advice = suggestions(scenario, months=3)
    assert {row.tier: row.asked for row in advice.intervals} == {"local": 10, "store": 5000}
    assert next(row.best for row in advice.intervals if row.tier == "store") < 2000
    assert advice.best_spares >= 1
    assert {names for names, _ in advice.tiers} == {("store",), ("local", "store")}
    assert advice.outcome.goodput > average(scenario, 3).goodput
