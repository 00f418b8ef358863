"""The smallest experiment: core's tiny model learns to count, in seconds. For trying out commands and drills."""

import kanawa as kn
from kanawa.testing.tiny import CountingTokens, TinyLM

from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.train.policies import CheckpointPolicy
from kanawa_runtime.train.trainer import Trainer


def tiny() -> kn.Config:
    """Returns 100 steps of 8 rows of 16 tokens, saved every 20."""
    return Trainer.Config(
        model=TinyLM.Config(),
        data=CountingTokens.Config(),
        batch_size=8,
        steps=100,
        learner=Learner.Config(schedule=Constant.Config(peak=3e-2)),
        checkpoints=CheckpointPolicy(every_steps=20),
    )
