"""The simulated month against a real gang: told when kills struck and what each attempt took for its start, a step and
a save, it says how much of the gang's time went into steps that count.

Each attempt's own times, because a machine that others use too makes one start take thrice another's: what is compared
is what the simulation makes of them, the steps that count, that are lost and taken again, and what saves cost.

KANAWA_KILLS sets how often the nightly one strikes, PYTEST_SEED repeats its chances.
"""

import dataclasses
import math
import os
import random
import statistics
import time

import pytest
from drills import drill_seed
from kanawa_parallel.plan.goodput.assume import Planned, assume_scenario
from kanawa_parallel.plan.goodput.scenario import Scenario, Tier
from kanawa_parallel.plan.goodput.simulate import Failure, Pace, Simulation
from kanawa_runtime.goodput.account import attempts_of
from kanawa_runtime.goodput.time_log import read_time_records
from kanawa_runtime.report import run_figures
from nursery import Nursery
from supervisor import Supervisor, events

EVERY = 16
STEP_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class Lived:
    """What one attempt of a real run took, in place of the scenario's; None is the scenario's.

    `start_seconds` are from its process's start to its first step, infinite for one that was killed before;
    `away_seconds` from its end to the next process's start.
    """

    start_seconds: float | None = None
    step_seconds: float | None = None
    blocking_seconds: float | None = None
    write_seconds: float | None = None
    away_seconds: float | None = None


class Replay(Simulation):
    """A month whose first attempts take what those of a real run took."""

    def __init__(self, scenario, failures, attempts):
        super().__init__(scenario, 0, failures)
        self.lived, self.following = Lived(), iter(attempts)

    def begin(self, until, is_first, origin):
        self.lived = next(self.following, Lived())
        if self.lived.start_seconds is None:
            super().begin(until, is_first, origin)
        else:
            self.spend("startup", self.lived.start_seconds, until)

    def pace(self):
        own = {name: getattr(self.lived, name) for name in ("blocking_seconds", "write_seconds")}
        own = {name: seconds for name, seconds in own.items() if seconds is not None}
        tiers = tuple(dataclasses.replace(tier, **own) for tier in self.scenario.tiers)
        return Pace(self.scenario.step_seconds if self.lived.step_seconds is None else self.lived.step_seconds, tiers)

    def wait(self, failure):
        if self.lived.away_seconds is None:
            super().wait(failure)
        else:
            self.spend("down", self.lived.away_seconds, self.scenario.horizon_seconds)


def test_attempts_of_a_real_run_take_what_they_took():
    tiers = (Tier("store", 10, 1.0, 4.0, 5.0),)
    nothing = dict.fromkeys(("restart_seconds", "compile_seconds", "cold_compile_seconds"), 0.0)
    scenario = Scenario(
        hosts=100, step_seconds=1.0, mtbf_hours=1000.0, tiers=tiers, days=100 / 86400, start_seconds=2.0,
        detect_seconds=3.0, **nothing,
    )  # fmt: skip
    attempts = [Lived(math.inf, away_seconds=3.0), Lived(7.0, 2.0, 0.5, 1.5, 0.0), Lived(start_seconds=1.0)]
    month = Replay(scenario, [Failure(10.0), Failure(45.0)], attempts).run()
    # From 20 s on twelve steps of two seconds, ten of them saved at 40.5 s; from 46 s on steps of one second again.
    assert month.seconds["startup"] == 10.0 + 7.0 + 1.0 and month.seconds["down"] == 3.0
    assert month.seconds["compile"] == month.seconds["checkpoint_restore"] == month.seconds["detection"] == 0.0
    assert month.steps == 10 + (54 - 4) and month.seconds["productive"] == 10 * 2.0 + (54 - 4)
    assert month.seconds["wasted"] == 45.0 - 20.0 - 20.0 - 0.5
    # A later attempt than was told of is as the scenario has it.
    later = Replay(scenario, [Failure(10.0)], [Lived(math.inf)]).run()
    assert later.seconds["startup"] == 10.0 + 2.0 and later.seconds["detection"] == 3.0


def killed_gang(nursery, folder, steps, moments, rng):
    """Trains with a rank killed at each of these steps; returns the run, and when kills struck."""
    supervisor = Supervisor(
        nursery, folder / "run", 2, ("--steps", str(steps), "--set", f"checkpoints.every_steps={EVERY}")
    )
    struck = []
    for moment in moments:
        gang = supervisor.start(f"in_step:sleep={STEP_SECONDS}:1+")
        supervisor.wait_for_step(moment, gang)
        gang[rng.randrange(2)].kill()
        struck.append(time.time())
        supervisor.finish(gang)
    assert supervisor.finish(supervisor.start(f"in_step:sleep={STEP_SECONDS}:1+")) == [0, 0]
    return supervisor.run, struck


def lived(attempt, records, resumed):
    """Returns what an attempt took, of its ledger and of the records of its steps and saves; the next one `resumed`."""
    own = [event for event in records if event["attempt"] == attempt.number]
    steps = [event for event in own if event["event"] == "step"]
    saves = [event for event in own if event["event"] == "checkpoint_committed"]
    if len(steps) < 2:
        return Lived(start_seconds=math.inf)
    first, last = steps[0]["time"], steps[-1]["time"]
    usual = statistics.median(event["seconds"] for event in steps)
    # As in the ledger: what took far longer than it does was no step, but something that held all of them up.
    stalls = sum(event["seconds"] - usual for event in steps[1:] if event["seconds"] > 3 * usual + 0.5)
    write = saves[-1]["seconds"] - saves[-1]["blocking_seconds"] if saves else None
    if resumed == steps[-1]["step"] // EVERY * EVERY:
        # One that was under way when the kill came may count, by milliseconds: that it did is told, too.
        write = 0.0
    saving = sum(line["seconds"].get("save", 0.0) for line in attempt.lines if first < line["time"] <= last)
    step = (last - first - stalls - saving) / (len(steps) - 1)
    return Lived(
        start_seconds=first - step - attempt.started + stalls,
        step_seconds=step,
        blocking_seconds=statistics.fmean(event["blocking_seconds"] for event in saves) if saves else None,
        # Of the last one, since its own time decided whether it counted when the attempt ended.
        write_seconds=write,
    )


def compared(nursery, folder, steps, moments, rng):
    """Returns (goodput as the ledger has it, goodput as simulated for the same kills)."""
    run, struck = killed_gang(nursery, folder, steps, moments, rng)
    (figures,) = run_figures([run])
    attempts, records = attempts_of(read_time_records(run)), events(run)
    assert len(attempts) == len(moments) + 1
    began = attempts[0].started
    prepared = {event["attempt"]: event["step"] for event in records if event["event"] == "prepared"}
    each = [lived(attempt, records, prepared.get(attempt.number + 1)) for attempt in attempts]
    # Up to the last step: what a run does at its end is no part of a month. Half a step more, or it may just not end.
    wall = max(event["time"] for event in records if event["event"] == "step") - began
    measured = figures["times"]
    tier = ",".join(f"{name}={measured[f'{name}_seconds']}" for name in ("blocking", "write", "restore"))
    told = [f"tier=disk:every={EVERY},{tier}", f"days={(wall + STEP_SECONDS / 2) / 86400}", "mtbf_hours=1"]
    scenario = assume_scenario(Planned(hosts=2, chips=2), told, measured).scenario
    ended = zip(each, struck, attempts[1:], strict=False)
    each = [*(dataclasses.replace(one, away_seconds=after.started - at) for one, at, after in ended), each[-1]]
    month = Replay(scenario, [Failure(at - began) for at in struck], each).run()
    assert month.failures == len(moments)
    return figures["goodput"]["seconds"]["productive"] / wall, month.seconds["productive"] / wall


@pytest.mark.nightly
def test_a_gang_that_is_killed_does_as_simulated(tmp_path, record_drill):
    # Well after the save before it: whether one that is under way still counts is a matter of milliseconds.
    moments = [2 * EVERY - 4, 4 * EVERY - 3]
    with Nursery() as nursery:
        real, simulated = compared(nursery, tmp_path, 5 * EVERY, moments, random.Random(1))
    assert simulated == pytest.approx(real, rel=0.05)
    record_drill(f"goodput: 2 kills, {real:.1%} of the time by the ledger, {simulated:.1%} simulated")


@pytest.mark.nightly
def test_a_gang_that_is_killed_often_does_as_simulated(tmp_path, record_drill):
    rng, kills = random.Random(drill_seed()), int(os.environ.get("KANAWA_KILLS", "10"))
    moments = [60 * kill + rng.randrange(3, 60) for kill in range(kills)]
    with Nursery() as nursery:
        real, simulated = compared(nursery, tmp_path, 60 * (kills + 1), moments, rng)
    assert simulated == pytest.approx(real, rel=0.05)
    record_drill(f"goodput: {kills} kills, {real:.1%} of the time by the ledger, {simulated:.1%} simulated")
