"""One process of a gang is killed: the others end with the code that means "start me again", and say so in a line."""

import os
import random
import re
import time

import pytest
from drills import drill_seed
from gangs import finish, start_gang, wait_for
from kanawa_runtime.checkpoint.layout import committed_steps
from kanawa_runtime.exit_codes import LOST
from kanawa_runtime.runs.events import read_events

STEPS = 60
# Rows for gangs of two, three and four.
OPTIONS = ("--steps", str(STEPS), "--set", "checkpoints.every_steps=1", "--set", "batch_size=24")
#: What the run's events show when it is time to kill; the first and the last are before and after any of them.
MOMENTS = ("start-up", "run_started", "kernel_selected", "step", "checkpoint_committed", "run_ended")
LINE = re.compile(r"^kanawa: another process of this run was lost \(.*start all of them again", re.MULTILINE)


def reached(run, moment):
    return any(event["event"] == moment for event in read_events(run / "events.jsonl"))


def kill_one(nursery, run, rank, moment, *, processes=2, later=0.0):
    """Kills a process of a gang at a moment; returns the codes of the others, and what they said."""
    gang = start_gang(nursery, run, *OPTIONS, processes=processes)
    if moment != "start-up":
        wait_for(gang, lambda: reached(run, moment))
    time.sleep(later)
    gang[rank].kill()
    lost = gang.pop(rank)
    lost.wait()
    return finish(*gang)


def check(run, codes, err):
    """One that was through already has ended well."""
    finished = any(event["event"] == "run_ended" and event["outcome"] == "done" for event in events_of(run))
    assert set(codes) <= {LOST, 0 if finished else LOST}, (codes, err)
    assert len(LINE.findall(err)) == codes.count(LOST), err
    assert "this is a bug" not in err
    assert "Traceback" not in err, err


def events_of(run):
    return read_events(run / "events.jsonl")


# That another process than the first is gone is noticed by its heartbeats, after 100 s.
@pytest.mark.parametrize(("rank", "moment"), [pytest.param(1, "step", marks=pytest.mark.nightly), (0, "step")])
def test_the_others_of_a_lost_process_ask_to_be_started_again(nursery, tmp_path, rank, moment):
    run = tmp_path / "run"
    codes, err = kill_one(nursery, run, rank, moment)
    check(run, codes, err)
    assert codes == [LOST]
    assert not [path.name for path in (run / "checkpoints").iterdir() if ".damaged" in path.name]


@pytest.mark.nightly
def test_any_process_lost_at_any_time_is_worth_another_start(nursery, tmp_path, record_drill):
    rng = random.Random(drill_seed())
    count = int(os.environ.get("KANAWA_DRILLS", "20"))
    for index in range(count):
        run, processes = tmp_path / str(index), rng.choice([2, 2, 3, 4])
        moment, rank, later = rng.choice(MOMENTS), rng.randrange(processes), rng.uniform(0, 2)
        codes, err = kill_one(nursery, run, rank, moment, processes=processes, later=later)
        check(run, codes, f"{moment} rank {rank} of {processes} after {later:.2f} s:\n{err}")
        if index % 5 == 0:
            codes, err = finish(*start_gang(nursery, run, *OPTIONS, processes=processes))
            assert set(codes) == {0}, err
            assert committed_steps(run / "checkpoints")[-1] == STEPS
    record_drill(f"drill: {count} of {count} lost processes: every other one asked to be started again")
