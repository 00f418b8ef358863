"""Reinforcement learning to try out: a tiny model learns to copy strings from a reward alone."""

import kanawa as kn

from kanawa_runtime.data.copying import Copying
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import WarmupCosine
from kanawa_runtime.rollouts.rewards import matching_tokens
from kanawa_runtime.train.policies import CheckpointPolicy
from kanawa_runtime.train.trainer import Trainer

STEPS = 200


def grpo_demo() -> kn.Config:
    """Returns GRPO on strings of three letters, about a minute on two cores; the reward starts at one in eight."""
    model = kn.component("models", "llama-tiny")().set(vocab_size=16)
    model.stack.set(num_layers=2, scan=False)  # two layers compile in a moment, and a loop copies slices at each step
    cfg = Trainer.Config(
        model=model,
        data=Copying.Config(),
        batch_size=128,
        steps=STEPS,
        learner=Learner.Config(schedule=WarmupCosine.Config(peak=3e-3, warmup_steps=10, decay_steps=STEPS)),
        checkpoints=CheckpointPolicy(every_steps=50),
    )
    grpo = kn.component("modifiers", "grpo").Config(reward=matching_tokens, group_size=16, new_tokens=3)
    cfg = grpo.build()(cfg)
    cfg.rollouts.engine.set(
        max_sequences=128, max_batched_tokens=1152, page_size=8, prefill_tokens=8, batch_sizes=(128,)
    )
    return cfg
