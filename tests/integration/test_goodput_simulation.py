"""The simulated month against a real gang: told when kills struck and what starts and saves take, it says how much of
the gang's time went into steps that count.

KANAWA_KILLS sets how often the nightly one strikes, PYTEST_SEED repeats its chances.
"""

import os
import random
import time

import pytest
from kanawa_parallel.plan.goodput.assume import Planned, assume
from kanawa_parallel.plan.goodput.simulate import Failure, simulate
from kanawa_runtime.goodput.account import attempts_of
from kanawa_runtime.goodput.ledger import LEDGER, read_ledger
from kanawa_runtime.goodput.times import starts
from kanawa_runtime.report import run_figures
from nursery import Nursery
from supervisor import Supervisor

EVERY = 12
STEP_SECONDS = 0.1


def killed_gang(nursery, folder, kills, steps, rng):
    """Trains with a rank killed so many times; returns the run, when kills struck, and how long each took to show."""
    supervisor = Supervisor(
        nursery, folder / "run", 2, ("--steps", str(steps), "--set", f"checkpoints.every_steps={EVERY}")
    )
    struck, noticed = [], []
    for kill in range(kills):
        gang = supervisor.start(f"in_step:sleep={STEP_SECONDS}:1+")
        supervisor.wait_for_step(steps * kill // (kills + 1) + rng.randrange(3, steps // (kills + 1)), gang)
        gang[rng.randrange(2)].kill()
        struck.append(time.time())
        supervisor.finish(gang)
        noticed.append(time.time() - struck[-1])
    assert supervisor.finish(supervisor.start(f"in_step:sleep={STEP_SECONDS}:1+")) == [0, 0]
    return supervisor.run, struck, noticed


def compared(nursery, folder, kills, steps, rng):
    """Returns (goodput as the ledger has it, goodput as simulated for the same kills)."""
    run, struck, noticed = killed_gang(nursery, folder, kills, steps, rng)
    (figures,) = run_figures([run])
    attempts = attempts_of(read_ledger(run / LEDGER))
    began = attempts[0].started
    # Up to the last step: what a run does at its end is no part of a month.
    wall = max(float(line["time"]) for line in attempts[-1].lines if line["steps"]) - began
    measured = figures["times"]
    tier = ",".join(f"{name}={measured[f'{name}_seconds']}" for name in ("blocking", "write", "restore"))
    told = [f"tier=disk:every={EVERY},{tier}", f"days={wall / 86400}", "host_share=0"]
    told += [f"detect_seconds={sum(noticed) / len(noticed)}", "restart_seconds=0", "mtbf_hours=1"]
    told += [f"cold_compile_seconds={measured['compile_seconds']}"]
    scenario = assume(Planned(hosts=2, chips=2), told, measured).scenario
    failures = [Failure(at - began) for at in struck]
    # A start that takes long on a busy machine takes its time from one attempt, not from all of them alike.
    month = simulate(scenario, failures=failures, starts=starts(read_ledger(run / LEDGER)))
    assert month.failures == kills
    return figures["goodput"]["seconds"]["productive"] / wall, month.goodput


def test_a_gang_that_is_killed_does_as_simulated(tmp_path, record_drill):
    with Nursery() as nursery:
        real, simulated = compared(nursery, tmp_path, 2, 72, random.Random(1))
    assert simulated == pytest.approx(real, abs=0.05)
    record_drill(f"goodput: 2 kills, {real:.1%} of the time by the ledger, {simulated:.1%} simulated")


@pytest.mark.nightly
def test_a_gang_that_is_killed_often_does_as_simulated(tmp_path, record_drill):
    rng, kills = random.Random(os.environ.get("PYTEST_SEED", time.time_ns())), int(os.environ.get("KANAWA_KILLS", "10"))
    with Nursery() as nursery:
        real, simulated = compared(nursery, tmp_path, kills, 40 * (kills + 1), rng)
    assert simulated == pytest.approx(real, abs=0.05)
    record_drill(f"goodput: {kills} kills, {real:.1%} of the time by the ledger, {simulated:.1%} simulated")
