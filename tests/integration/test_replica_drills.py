"""One flipped bit of one rank's gradient is found at the next comparison, that rank named, and no loss changed."""

import pytest
from kanawa_runtime.exit_codes import LOST
from supervisor import Supervisor, committed, digests, events, result

STEPS, PROCESSES = 20, 4
OPTIONS = (
    *("--steps", str(STEPS), "--set", "checkpoints.every_steps=5", "--set", "health.check_replicas_every=4"),
    # Whole parameters on each of four devices, of which three outvote one.
    *("--modify", f'mesh:axes={{"data": {PROCESSES}}}'),
)


#: A program that could flip a bit is another one than that which can't, and rounds in other places.
NEVER = "in_gradient:flip=12:9999:0"


@pytest.fixture(scope="module")
def golden(nursery, tmp_path_factory):
    supervisor = Supervisor(nursery, tmp_path_factory.mktemp("golden") / "run", PROCESSES, OPTIONS)
    assert supervisor.finish(supervisor.start(NEVER)) == [0] * PROCESSES
    return result(supervisor.run)


def seen(run):
    return [(e["step"], e["verdict"], e["ranks"]) for e in events(run) if e["event"] == "replicas_differ"]


@pytest.mark.nightly
def test_a_bit_flipped_between_two_comparisons_sends_the_run_back_to_what_is_sound(nursery, golden, tmp_path):
    supervisor = Supervisor(nursery, tmp_path / "run", PROCESSES, OPTIONS)
    gang = supervisor.start("in_gradient:flip=12:9:2")
    codes = supervisor.finish(gang)
    said = "\n".join(child.text() for child in gang)
    assert set(codes) <= {LOST, -9}, (codes, said)
    # Step 10 was saved after the flip of step 9, and is not trusted; step 5 was saved before the last comparison.
    assert seen(supervisor.run) == [(12, "earlier", [2])]
    assert "computed other numbers than the rest, some time after step 8" in said
    assert committed(supervisor.run)[-1] == 5
    for event in (supervisor.run / "events.jsonl").read_bytes().splitlines():
        assert b"Traceback" not in event
    # What was computed from the flipped bit is void: the steps are taken again.
    assert supervisor.finish(supervisor.start(NEVER)) == [0] * PROCESSES
    last = {e["step"]: float(e["loss"]).hex() for e in events(supervisor.run) if e["event"] == "step"}
    assert (last, digests(supervisor.run)) == (golden.losses, golden.digests)


@pytest.mark.nightly
def test_a_bit_flipped_in_an_observed_step_each_time_is_a_bad_device(nursery, golden, tmp_path, record_drill):
    """The fault is the program's own: it happens each time the step is taken."""
    supervisor = Supervisor(nursery, tmp_path / "run", PROCESSES, OPTIONS)
    gang = supervisor.start("in_gradient:flip=12:8:1")
    assert set(supervisor.finish(gang)) <= {LOST, -9}
    assert seen(supervisor.run) == [(8, "persistent", [1])]
    assert supervisor.finish(supervisor.start(NEVER)) == [0] * PROCESSES
    last = {e["step"]: float(e["loss"]).hex() for e in events(supervisor.run) if e["event"] == "step"}
    assert (last, digests(supervisor.run)) == (golden.losses, golden.digests)
    record_drill("drill: 1 of 1 devices that flip a bit each time named")
