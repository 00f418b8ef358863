"""Gangs that are killed anywhere end with the bits of the gang that was left alone; a stop saves one step for all.

KANAWA_DRILLS sets how often the nightly ones strike, PYTEST_SEED repeats their chances.
"""

import concurrent.futures
import dataclasses
import os
import random
import signal
import time

import pytest
from drills import drill_seed
from kanawa_runtime.exit_codes import verdict
from kanawa_runtime.goodput.account import account
from kanawa_runtime.goodput.time_log import read_time_records
from supervisor import Result, Supervisor, committed, events, last_step, result

STEPS = 48
OPTIONS = ("--steps", str(STEPS), "--set", "checkpoints.every_steps=12")
MANY = int(os.environ.get("KANAWA_DRILLS", "100"))
GRACE_SECONDS = 15.0
#: Ways to end at once at each place; the nth time that a process comes there.
ENDS = (
    "pre_mkdir:sigkill:2",
    "mid_write:sigkill:2",
    "pre_manifest:sigkill:2",
    "pre_commit:sigkill:2",
    "pre_commit:torn:2",
    "post_commit:sigkill:2",
    "post_commit:torn:2",
    "in_gc:sigkill:2",
    "in_restore:sigkill:1",
    "in_compile:sigkill:1",
    "in_data:sigkill:9",
    "in_step:sigkill:9",
    "in_step:exit=1:9",
    "in_collective:sigkill:9",
    "in_evaluation:sigkill:1",
)
#: Only the first process makes room, commits and deletes; the others may be struck at the rest.
OF_THE_FIRST = ("pre_mkdir", "pre_manifest", "pre_commit", "post_commit", "in_gc")
#: How often a kill at any moment may come too late, when all was done.
MISSES = 3


def chance():
    return random.Random(drill_seed())


def saved_by(kind):
    return (*OPTIONS, "--set", f"checkpointer={kind}")


@dataclasses.dataclass(frozen=True)
class Golden:
    """What runs compute that nobody disturbs, and the seconds that one takes."""

    result: Result
    seconds: float


@pytest.fixture(scope="module")
def golden(nursery, tmp_path_factory):
    """Runs that nobody disturbs, by the number of their processes and by what saves them."""
    made = {}

    def of(processes, kind="orbax"):
        if (processes, kind) not in made:
            results = []
            for _ in range(2):
                folder, began = tmp_path_factory.mktemp("golden"), time.monotonic()
                results.append(Supervisor(nursery, folder / "run", processes, saved_by(kind)).to_the_end(1))
            first, second = results
            assert list(first.losses) == list(range(1, STEPS + 1))
            # Without this the drills would prove nothing.
            assert first == second
            made[processes, kind] = Golden(first, time.monotonic() - began)
        return made[processes, kind]

    return of


def strike(supervisor, rng, fault, seconds):
    """Starts the gang and ends one of it: at a fault point, or for an empty `fault` at any moment of so many seconds.

    Returns whether it was struck; one may have been through before.
    """
    rank = rng.randrange(supervisor.processes)
    point, action = (*fault.split(":"), "")[:2]
    gang = supervisor.start(f"{fault}:{0 if point in OF_THE_FIRST else rank}" if fault else "")
    if not fault:
        if rng.random() < 0.5:
            time.sleep(rng.uniform(0, seconds))
        else:
            supervisor.wait_for_step(rng.randrange((committed(supervisor.run) or [0])[-1] + 1, STEPS), gang)
            time.sleep(rng.uniform(0, 0.05))
        gang[rank].kill()
        gang[rank].wait()
    codes = supervisor.finish(gang)
    said = [child.text() for child in gang]
    permanent = [code for code in codes if code > 0 and verdict(code) == "permanent" and "exit" not in fault]
    assert not permanent, (fault, codes, "\n".join(text[-2000:] for text in said))
    if not fault:
        return codes[rank] == -signal.SIGKILL
    return any(f"fault: {action.partition('=')[0]} at {point}" in text for text in said)


def drilled(nursery, folder, golden, rng, processes, faults, kind="orbax"):
    """Strikes by each of the faults; a run that is through is compared, and the next one is struck."""
    expected, supervisor, number = golden(processes, kind), None, 0
    for fault in faults:
        for _ in range(1 + MISSES):
            if supervisor is None:
                number += 1
                supervisor = Supervisor(nursery, folder / str(number) / "run", processes, saved_by(kind))
            struck = strike(supervisor, rng, fault, expected.seconds)
            if STEPS in committed(supervisor.run):
                assert (supervisor.to_the_end() if struck else result(supervisor.run)) == expected.result
                supervisor = None
            if struck:
                break
        else:
            pytest.fail(f"nothing was struck by {fault or 'a kill'}")
    if supervisor is not None:
        assert supervisor.to_the_end() == expected.result


@pytest.mark.parametrize(
    ("kind", "faults"),
    [
        pytest.param(
            "orbax",
            ["", "pre_commit:sigkill:1", "post_commit:torn:2", "in_restore:sigkill:1", "in_collective:sigkill:9"],
            marks=pytest.mark.nightly,
        ),
        ("sharded", ["mid_write:torn:2"]),
        pytest.param("sharded", ["", "in_gc:sigkill:2"], marks=pytest.mark.nightly),
    ],
)
def test_a_gang_that_is_killed_anywhere_ends_with_the_bits_of_one_that_is_not(
    nursery, golden, tmp_path, record_drill, kind, faults
):
    drilled(nursery, tmp_path, golden, chance(), 2, faults, kind)
    record_drill(f"drill: {len(faults)} of {len(faults)} ends of a gang of two resumed bit for bit, saved by {kind}")


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "processes"), [("orbax", 1), ("orbax", 2), ("orbax", 4), ("sharded", 4)])
def test_killed_at_every_point(nursery, golden, tmp_path, record_drill, kind, processes):
    drilled(nursery, tmp_path, golden, chance(), processes, ENDS, kind)
    record_drill(
        f"drill: {len(ENDS)} of {len(ENDS)} ends at fault points, {processes} processes, saved by {kind}, bit for bit"
    )


def several(folder, count, each, one):
    """Drills `count` times, `each` with one run, by `one(folder, rng, times)`, two runs at a time."""
    seed = drill_seed()

    def drill(index):
        one(folder / str(index), random.Random(f"{seed} {index}"), min(each, count - index))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(drill, range(0, count, each)))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_killed_many_times(nursery, golden, tmp_path, record_drill):
    kinds = ("orbax", "sharded")

    def one(folder, rng, times):
        drilled(nursery, folder, golden, rng, 4, [rng.choice(["", *ENDS]) for _ in range(times)], rng.choice(kinds))

    # Not by two threads at once.
    for kind in kinds:
        golden(4, kind)
    several(tmp_path, MANY, 10, one)
    record_drill(f"drill: {MANY} of {MANY} kills of a gang resumed bit for bit")


def stopped(supervisor, rng, within=120.0):
    """Sends SIGTERM to one of the gang, once it steps; returns the step that all of it saved."""
    gang = supervisor.start()
    supervisor.wait_for_step(last_step(supervisor.run) + rng.randrange(2, 12), gang)
    victim = rng.choice(gang)
    victim.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    # Each ends for itself: on a busy machine one after the other, with seconds between them.
    codes = supervisor.finish(gang, patience=within)
    seconds = time.monotonic() - asked
    assert set(codes) == {42}, (codes, "\n".join(child.text()[-2000:] for child in gang))
    assert seconds < within
    ended = events(supervisor.run)[-1]
    assert (ended["event"], ended["outcome"]) == ("run_ended", "preempted")
    assert committed(supervisor.run)[-1] == ended["step"]
    return ended["step"]


@pytest.mark.nightly
def test_sigterm_to_one_of_four_saves_one_step_for_all(nursery, tmp_path):
    slow = ("--steps", "4000", "--set", "checkpoints.every_steps=1000")
    supervisor = Supervisor(nursery, tmp_path / "run", 4, slow)
    step = stopped(supervisor, chance())
    assert result(supervisor.run).losses.keys() == set(range(1, step + 1))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_sigterm_many_times(nursery, golden, tmp_path, record_drill):
    expected, count = golden(4).result.losses, max(1, MANY // 2)

    def one(folder, rng, times):
        supervisor = Supervisor(nursery, folder / "run", 4, ("--steps", "4000", *OPTIONS[2:]))
        for _ in range(times):
            stopped(supervisor, rng, GRACE_SECONDS)
        computed = result(supervisor.run).losses
        both = expected.keys() & computed.keys()
        assert {step: computed[step] for step in both} == {step: expected[step] for step in both}

    several(tmp_path, count, 5, one)
    record_drill(f"drill: {count} of {count} stops of one of four saved one step for all within {GRACE_SECONDS:g} s")


def drawn(supervisor):
    return account(read_time_records(supervisor.run))


def killed_and_stalled(nursery, folder, processes, kills, stalls):
    """Kills a gang so many times and lets it finish with stalls; returns its account, having checked its sum."""
    rng = chance()
    supervisor = Supervisor(nursery, folder / "run", processes, OPTIONS)
    began = time.time()
    for _ in range(kills):
        gang = supervisor.start("in_step:sleep=0.05:1+")
        supervisor.wait_for_step(rng.randrange(1, STEPS), gang)
        rng.choice(gang).kill()
        supervisor.finish(gang)
    gang = supervisor.start(stalls)
    assert supervisor.finish(gang) == [0] * processes
    wall = time.time() - began
    seen = drawn(supervisor)
    # One that is killed while it imports leaves no line: that time lies between two attempts.
    assert 2 <= seen.attempts <= kills + 1
    assert sum(seen.seconds.values()) == pytest.approx(seen.wall_seconds, rel=0.01)
    # The command's last words and the fork are no part of it, which a busy machine is slow with as with all the rest.
    assert wall - max(3, wall / 5) < seen.wall_seconds <= wall + 0.2
    return seen, f"the account over {kills} kills adds up, {seen.wall_seconds:.1f} s of {wall:.1f} s seen outside"


def test_the_account_adds_up_across_kills_and_knows_a_stall(nursery, tmp_path, record_drill):
    """The seconds between the first process's start and the end of the last, as this test sees them."""
    stalls = "in_data:sleep=3:4,in_evaluation:sleep=2:1,in_compile:sleep=1:1"
    seen, said = killed_and_stalled(nursery, tmp_path, 1, 1, stalls)
    assert 3 <= seen.seconds["data"] < 6
    assert seen.seconds["evaluation"] >= 2
    assert seen.seconds["compile"] >= 1
    record_drill(f"drill: {said}")


@pytest.mark.nightly
def test_the_account_adds_up_across_many_kills_and_knows_long_stalls(nursery, tmp_path, record_drill):
    """A stall of the first process's own data, and one that it sees as a step that another one keeps waiting."""
    kills, seconds = int(os.environ.get("KANAWA_KILLS", "10")), 30
    # Before the last save, since the step after a save may be the one that is tried twice.
    stalls = f"in_data:sleep={seconds}:2:0,in_step:sleep={seconds}:5:1"
    seen, said = killed_and_stalled(nursery, tmp_path, 4, kills, stalls)
    assert seconds <= seen.seconds["data"] < seconds + 5, seen
    assert seconds - 1 <= seen.seconds["stalled"] < seconds + 5, seen
    each = ", ".join(f"{name} {seen.seconds[name]:.1f} s" for name in ("data", "stalled"))
    record_drill(f"drill: {said}; two stalls of {seconds} s: {each}")


def test_a_run_that_may_go_back_leaves_out_what_led_it_astray(nursery, tmp_path):
    options = ("--steps", "20", "--set", "checkpoints.every_steps=5", "--set", "divergence.rewinds=1")
    supervisor = Supervisor(nursery, tmp_path / "run", 1, options)
    (child,) = supervisor.start("in_gradient:nan:8")
    assert child.wait() == 42, child.text()
    said = "The run goes back to step 5 and leaves out the batches of steps 6 to 8 (0 more such returns are allowed"
    assert said in child.text()
    (child,) = supervisor.start()
    assert child.wait() == 0, child.text()
    (rewound,) = [event for event in events(supervisor.run) if event["event"] == "rewound"]
    assert (rewound["step"], rewound["back_to"], rewound["batches"]) == (8, 5, [[5, 7]])
    # Rows count up, so a loss tells its rows: steps 6 and on are those of a run that never had the three batches.
    steps = {event["step"]: event["loss"] for event in events(supervisor.run) if event["event"] == "step"}
    assert sorted(steps) == list(range(1, 21))
    # Once more is once too often.
    (child,) = supervisor.start("in_gradient:nan:24", ("--steps", "30"))
    assert child.wait() == 1
    assert "too large to compute with" in child.text()
