"""The offline hello world: a small Llama on the Python standard library's own source."""

import kanawa as kn

from kanawa_runtime.data.source import TextSource
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import WarmupCosine
from kanawa_runtime.train.policies import CheckpointPolicy, EvaluationPolicy
from kanawa_runtime.train.trainer import Trainer


def quickstart() -> kn.Config:
    """Returns the experiment of `nox -s quickstart`: under five minutes on two cores."""
    return Trainer.Config(
        model=kn.component("models", "llama-tiny")(),
        data=TextSource.Config(sequence_length=256),
        batch_size=8,
        steps=350,
        learner=Learner.Config(
            schedule=WarmupCosine.Config(peak=5e-3, warmup_steps=50, decay_steps=350, final_fraction=0.1)
        ),
        evaluation=EvaluationPolicy(every_steps=100, max_batches=16, trigram_baseline=True),
        checkpoints=CheckpointPolicy(every_steps=100),
        sample_prompt="def ",
    )
