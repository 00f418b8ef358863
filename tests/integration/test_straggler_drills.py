"""In a real gang, a rank whose own part of each step takes longer is named, and nobody else."""

import pytest
from supervisor import Supervisor, events

OPTIONS = ("--set", "checkpoints.every_steps=1000", "--set", "health.pace_window=5")


def named(nursery, run, steps, fault, processes=2):
    supervisor = Supervisor(nursery, run, processes, ("--steps", str(steps), *OPTIONS))
    assert supervisor.finish(supervisor.start(fault)) == [0] * processes
    return [(event["rank"], event["step"]) for event in events(run) if event["event"] == "straggler"]


def slowed(nursery, folder, processes, rank, steps):
    """Makes a rank slow, and returns how many of its steps it takes to name it, and nobody else."""
    # Each takes its time alike, or on a machine that others use too the bare steps of a gang are mostly noise; the
    # first thirty are like all others.
    fault = f"in_data:sleep=0.05:1+,in_data:sleep=0.2:31+:{rank}"
    seen = named(nursery, folder / "run", steps, fault, processes)
    assert [each for each, _ in seen] == [rank]
    taken = seen[0][1] - 31
    assert 0 <= taken <= 50
    return taken


@pytest.mark.nightly
def test_a_slow_rank_is_named_within_fifty_steps(nursery, tmp_path):
    slowed(nursery, tmp_path, 2, 1, steps=60)


@pytest.mark.nightly
def test_whichever_of_four_is_slow_is_named_within_fifty_steps(nursery, tmp_path, record_drill):
    steps = [slowed(nursery, tmp_path / str(rank), 4, rank, steps=81) for rank in range(4)]
    record_drill(f"drill: 4 of 4 slow ranks of four named, the last one after {max(steps)} steps")


@pytest.mark.nightly
def test_a_thousand_steps_without_a_slow_rank_name_nobody(nursery, tmp_path, record_drill):
    # Each rank takes its time alike: on a machine of two cores, bare steps of a gang are mostly noise.
    seen = named(nursery, tmp_path / "run", 1000, "in_data:sleep=0.05:1+", processes=4)
    assert seen == []
    record_drill("drill: 1000 of 1000 steps of a gang without a slow rank named nobody")
