"""Vision to try out: small models learn shapes that are drawn on the spot, or pictures of one's own."""

from typing import Any

import kanawa as kn
from kanawa.contracts import DataSource

from kanawa_runtime.data.images.augment import Flip
from kanawa_runtime.data.images.drawn import SHAPES, DrawnShapes
from kanawa_runtime.data.images.drawn_captions import DrawnCaptions
from kanawa_runtime.data.images.drawn_questions import DrawnQuestions
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
    return _trained(model, DrawnShapes.Config(augmentations=(Flip.Config(),)), peak=1e-2, steps=STEPS)


def clip_tiny() -> kn.Config:
    """Returns two towers for pictures of 32 pixels and captions: minutes on two cores; `--data` names others."""
    model = kn.component("models", "clip-tiny", asker="kanawa-runtime")()
    for tower in (model.image, model.text):
        tower.stack.set(scan=False)
    return _trained(model, DrawnCaptions.Config(), peak=4e-3, steps=2 * STEPS)


def coca_tiny() -> kn.Config:
    """Returns a model that tells captions apart and writes them: minutes on two cores; `--data` names other pairs."""
    model = kn.component("models", "coca-tiny", asker="kanawa-runtime")()
    for stack in (model.towers.image.stack, model.towers.text.stack, model.decoder.stack):
        stack.set(scan=False)
    return _trained(model, DrawnCaptions.Config(), peak=4e-3, steps=2 * STEPS)


def vlm_tiny() -> kn.Config:
    """Returns a language model that answers questions about drawn pictures: minutes on two cores."""
    model = kn.component("models", "vlm-tiny", asker="kanawa-runtime")()
    for stack in (model.tower.stack, model.language.stack):
        stack.set(scan=False)
    data = DrawnQuestions.Config()
    data.fit(model)
    return _trained(model, data, peak=4e-3, steps=4 * STEPS)


def vae_tiny() -> kn.Config:
    """Returns an autoencoder of pictures of 32 pixels: a few minutes on two cores; `--data` names others."""
    model = kn.component("models", "vae-tiny", asker="kanawa-runtime")()
    return _trained(model, DrawnShapes.Config(augmentations=(Flip.Config(),)), peak=4e-3, steps=STEPS)


def _trained(model: Any, data: DataSource.Config, peak: float, steps: int) -> kn.Config:
    return Trainer.Config(
        model=model,
        data=data,
        batch_size=32,
        steps=steps,
        learner=Learner.Config(
            optimizer=Muon.Config(newton_schulz_steps=3),
            schedule=WarmupCosine.Config(peak=peak, warmup_fraction=0.1, final_fraction=0.02),
        ),
        evaluation=EvaluationPolicy(every_steps=100),
        checkpoints=CheckpointPolicy(every_steps=100),
    )
