"""A gang that makes no progress is seen, its stacks are kept, it ends as what is to be started again, and finishes.

KANAWA_DRILLS sets how often the nightly one strikes.
"""

import concurrent.futures
import json
import os
import random
import time

import pytest
from drills import drill_seed
from kanawa_runtime.exit_codes import LOST
from supervisor import Supervisor, events, last_step, result

STEPS = 60
ALLOWED = 6.0
#: What a machine that is busy with other tests may add; nobody who didn't look would end it within minutes.
SLACK_SECONDS = 45.0
MANY = int(os.environ.get("KANAWA_DRILLS", "20"))
OPTIONS = ("--steps", str(STEPS), "--set", "checkpoints.every_steps=20", "--modify")
#: The fault, and what is said of the rank that has it.
HANGS = {
    "sigstop": "stopped",
    "sleep": "stalled",
    "gil_hang": "holds the interpreter's lock",
}


def watched(values="{}"):
    return (*OPTIONS, f"service:name=watchdog,values={values}")


FAST = watched(json.dumps({"step_seconds": ALLOWED, "least_seconds": ALLOWED}))


def hang(nursery, run, action, rank, processes, *, step=24, again=True):
    """Has a rank hang, and checks all that is to come of it; returns the seconds from the hang to the last exit."""
    supervisor = Supervisor(nursery, run, processes, FAST)
    gang = supervisor.start(f"in_step:{action}:{step}:{rank}")
    supervisor.wait_for_step(step - 2, gang)
    began = time.monotonic()
    codes = supervisor.finish(gang, patience=60)
    seconds = time.monotonic() - began
    said = "\n".join(child.text() for child in gang)
    assert all(code in (LOST, -9) for code in codes), (codes, said)
    assert seconds < 2 * ALLOWED + SLACK_SECONDS
    folder = run / "stacks" / "attempt-1"
    for index in range(processes):
        text = (folder / f"rank-{index}.txt").read_text()
        assert "most recent call first" in text, text
        assert "loop.py" in text
    verdict = json.loads((folder / f"rank-{rank}.json").read_text())
    assert verdict["state"] == HANGS[action]
    (detected,) = [event for event in events(run) if event["event"] == "hang_detected"]
    assert [one["rank"] for one in detected["suspects"]] == [rank]
    assert f"the stacks of all processes are in {folder}" in said
    if again:
        assert supervisor.finish(supervisor.start()) == [0] * processes
        assert result(run).losses.keys() == set(range(1, STEPS + 1))
    return seconds


@pytest.mark.parametrize(
    "action", [pytest.param(a, marks=pytest.mark.nightly if a != "sigstop" else ()) for a in HANGS]
)
def test_a_rank_that_hangs_is_named_and_all_end_to_be_started_again(nursery, tmp_path, action):
    hang(nursery, tmp_path / "run", action, 1, 2, again=False)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("action", HANGS)
def test_hangs_many_times(nursery, tmp_path, action, record_drill):
    rng = random.Random(drill_seed())
    ranks = [rng.randrange(4) for _ in range(MANY)]
    # Two at a time: most of a hang is waiting for it to be seen.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        seconds = list(pool.map(lambda i: hang(nursery, tmp_path / str(i), action, ranks[i], 4), range(MANY)))
    record_drill(
        f"drill: {MANY} of {MANY} hangs ({action}) of one of four seen, the slowest after {max(seconds):.1f} s"
    )


@pytest.mark.nightly
def test_what_takes_long_in_its_own_section_is_no_hang(nursery, tmp_path):
    """Compiling, evaluating, saving and restoring are each longer here than a step may be."""
    quick = watched(json.dumps({"step_seconds": 4.0, "least_seconds": 4.0, "alone": True}))
    supervisor = Supervisor(nursery, tmp_path / "run", 1, quick)
    (child,) = supervisor.start("in_compile:sleep=5:1,in_evaluation:sleep=5:1,pre_mkdir:sleep=5:1,in_restore:sleep=5:1")
    assert supervisor.finish([child]) == [0], child.text()
    assert last_step(supervisor.run) == STEPS
    assert not (supervisor.run / "stacks").exists()
