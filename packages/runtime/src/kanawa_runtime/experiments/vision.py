"""Vision to try out: a small transformer tells shapes apart that are drawn on the spot, or pictures of one's own."""

import kanawa as kn

from kanawa_runtime.data.images.augment import Flip
from kanawa_runtime.data.images.drawn import SHAPES, DrawnShapes
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.muon import Muon
from kanawa_runtime.learn.schedules import WarmupCosine
from kanawa_runtime.train.policies import CheckpointPolicy, EvaluationPolicy
from kanawa_runtime.train.trainer import Trainer

STEPS = 300


def vit_tiny() -> kn.Config:
    """Returns a classifier of pictures of 32 pixels: a minute or two on two cores; `--data` names others."""
    model = kn.component("models", "vit-tiny", asker="kanawa-runtime")()
    model.set(num_classes=len(SHAPES), class_names=tuple(SHAPES))
    model.encoder.stack.set(scan=False)  # four layers compile in a few seconds, and a loop copies its slices each step
    return Trainer.Config(
        model=model,
        data=DrawnShapes.Config(augmentations=(Flip.Config(),)),
        batch_size=32,
        steps=STEPS,
        learner=Learner.Config(
            optimizer=Muon.Config(newton_schulz_steps=3),
            schedule=WarmupCosine.Config(peak=1e-2, warmup_fraction=0.1, final_fraction=0.02),
        ),
        evaluation=EvaluationPolicy(every_steps=100),
        checkpoints=CheckpointPolicy(every_steps=100),
    )
