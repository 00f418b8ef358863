"""Learning from rewards is killed anywhere, also between updates on the same rollouts, and ends with the same bits."""

import random

import pytest
from nursery import Nursery
from supervisor import Supervisor, committed

STEPS = 8
#: Each save at an odd step holds rollouts whose parameters are gone.
OPTIONS = (
    "--steps", str(STEPS), "--set", "checkpoints.every_steps=3", "--set", "rollouts.updates=2",
    "--set", "rollouts.reference=true", "--set", "model.loss.kl=0.05",
)  # fmt: skip
FAULTS = ("mid_write:sigkill:1", "in_step:sigkill:5", "post_commit:sigkill:1", "in_restore:sigkill:1")


@pytest.mark.nightly
def test_rollouts_and_what_is_learned_from_them_are_the_same_after_every_kill(tmp_path):
    with Nursery() as nursery:
        wanted = Supervisor(nursery, tmp_path / "golden" / "run", 1, OPTIONS, "grpo-demo").to_the_end(1)
        assert list(wanted.losses) == list(range(1, STEPS + 1))
        struck = Supervisor(nursery, tmp_path / "struck" / "run", 1, OPTIONS, "grpo-demo")
        for fault in FAULTS:
            (child,) = struck.start(f"{fault}:0")
            struck.finish([child])
            assert f"at {fault.partition(':')[0]}" in child.text(), child.text()[-2000:]
        (child,) = struck.start()
        struck.wait_for_step(random.randrange((committed(struck.run) or [0])[-1] + 1, STEPS), [child])
        child.kill()
        child.wait()
        assert struck.to_the_end() == wanted
