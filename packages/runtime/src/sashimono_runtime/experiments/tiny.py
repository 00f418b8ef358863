"""The smallest experiment: core's tiny model learns to count, in seconds. For trying out commands and drills."""

import sashimono as sm
from sashimono.testing.tiny import CountingTokens, TinyLM

from sashimono_runtime.learn.learner import Learner
from sashimono_runtime.learn.schedules import Constant
from sashimono_runtime.train.policies import CheckpointPolicy
from sashimono_runtime.train.trainer import Trainer


def tiny() -> sm.Config:
    """Returns 100 steps of 8 rows of 16 tokens, saved every 20."""
    return Trainer.Config(
        model=TinyLM.Config(),
        data=CountingTokens.Config(),
        batch_size=8,
        steps=100,
        learner=Learner.Config(schedule=Constant.Config(peak=3e-2)),
        checkpoints=CheckpointPolicy(every_steps=20),
    )
