"""A run that moves from four processes to two, to one, and to four of another layout: no bit and no example is lost."""

import numpy as np
import pytest
from supervisor import Supervisor, committed, events, last_step

EPOCH, ROWS = 8, 64
#: Processes, what their devices split, and the step where the next ones take over; the last ends the second epoch.
STAGES = ((4, "fsdp", 3), (2, "fsdp", 7), (1, "fsdp", 10), (4, "tensor", 16))


def train(nursery, run, stages, *options):
    """Trains stage by stage; what a stage restores has the digests that the one before saved, or it would not start."""
    for number, (processes, axis, steps) in enumerate(stages):
        more = ("--steps", str(steps), "--modify", f'mesh:axes={{"{axis}":{processes}}}', *options)
        stage = Supervisor(nursery, run, processes, more, "tiny-lm-rows")
        gang = stage.start()
        codes = stage.finish(gang)
        assert set(codes) == {0}, (number, codes, "\n".join(child.text()[-2000:] for child in gang))
        assert committed(run)[-1] == last_step(run) == steps


def metrics(run):
    return {event["step"]: event["metrics"] for event in events(run) if event["event"] == "step"}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["orbax", "sharded"])
def test_no_bit_and_no_example_is_lost_on_the_way(nursery, tmp_path, record_drill, kind):
    options = ("--set", f"checkpointer={kind}")
    train(nursery, tmp_path / "moved", STAGES, *options)
    train(nursery, tmp_path / "still", [(1, "fsdp", STAGES[-1][2])], *options)
    moved, still = metrics(tmp_path / "moved"), metrics(tmp_path / "still")
    assert list(moved) == list(range(1, STAGES[-1][2] + 1))
    for first in range(1, STAGES[-1][2], EPOCH):
        seen = [sum(moved[step][f"row_{row}"] for step in range(first, first + EPOCH)) for row in range(ROWS)]
        assert seen == [1] * ROWS
    for step, record in still.items():
        np.testing.assert_allclose(moved[step]["cross_entropy"], record["cross_entropy"], rtol=1e-5)
        assert {k: v for k, v in record.items() if k.startswith("row_")} == {
            k: v for k, v in moved[step].items() if k.startswith("row_")
        }
    assert sum(event["event"] == "run_started" for event in events(tmp_path / "moved")) == len(STAGES)
    record_drill(
        f"drill: a run by {kind} of 4, 2, 1 and 4 processes, fsdp to tensor: every row exactly once in each of "
        f"{STAGES[-1][2] // EPOCH} epochs, the losses of one process"
    )
