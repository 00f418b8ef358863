"""Reinforcement learning to try out: a tiny model learns to copy strings from a reward alone."""

import kanawa as kn
from kanawa.contracts import FeedForward, SequenceMixer

from kanawa_runtime.data.copying import Copying
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.rollouts.rewards import matching_tokens
from kanawa_runtime.train.policies import CheckpointPolicy
from kanawa_runtime.train.trainer import Trainer

STEPS = 200


def grpo_demo() -> kn.Config:
    """Returns GRPO on strings of two letters: the share that is right rises from a sixteenth to most."""
    model = kn.component("models", "llama-tiny", asker="kanawa-runtime")().set(vocab_size=16, input_dim=64)
    model.embedding.set(init_stddev=64**-0.5)
    model.stack.set(num_layers=2, scan=False)  # two layers compile in a moment, and a loop copies slices at each step
    kn.replace(model, target=SequenceMixer, edit=lambda node: node.set(num_heads=2, num_kv_heads=2))
    kn.replace(model, target=FeedForward, edit=lambda node: node.set(hidden_dim=128))
    cfg = Trainer.Config(
        model=model,
        data=Copying.Config(string_length=2, held_out_rows=128),
        batch_size=128,
        steps=STEPS,
        learner=Learner.Config(schedule=Constant.Config(peak=2e-3)),
        checkpoints=CheckpointPolicy(every_steps=50),
    )
    grpo = kn.component("modifiers", "grpo", asker="kanawa-runtime").Config(
        reward=matching_tokens, group_size=8, new_tokens=2
    )
    trained: kn.Config = grpo.build()(cfg)
    # One shape of each kind: all rows begin and end together, and each program more takes seconds to compile.
    shapes = {"batch_sizes": (128,), "prefill_rows": (128,), "prefill_sizes": (8,)}
    trained.rollouts.engine.set(max_sequences=128, max_batched_tokens=1152, page_size=8, prefill_tokens=8, **shapes)
    return trained
