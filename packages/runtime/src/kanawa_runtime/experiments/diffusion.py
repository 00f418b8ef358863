"""Diffusion: small models learn to draw digits, shapes by a text, or one's own pictures; DiT-XL/2 as published."""

from typing import Any

import kanawa as kn
from kanawa.contracts import DataSource, PrecisionConfig

from kanawa_runtime.data.images.drawn_captions import DrawnCaptions
from kanawa_runtime.data.images.drawn_digits import STROKES, DrawnDigits
from kanawa_runtime.data.images.labelled_latents import LabelledLatents
from kanawa_runtime.learn.adamw import AdamW
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.moving_average import MovingAverage
from kanawa_runtime.learn.muon import Muon
from kanawa_runtime.learn.schedules import Constant, WarmupCosine
from kanawa_runtime.train.policies import CheckpointPolicy, EvaluationPolicy
from kanawa_runtime.train.trainer import Trainer

STEPS, TEXT_STEPS = 1000, 800


def dit_tiny() -> kn.Config:
    """Returns a model that draws digits of 16 pixels by label: minutes on two cores; `--data` names other pictures."""
    model = kn.component("models", "dit-tiny", asker="kanawa-runtime")()
    model.set(num_classes=len(STROKES), class_names=tuple(map(str, range(len(STROKES)))))
    model.denoiser.stack.set(scan=False)  # four layers compile in a few seconds, and a loop copies its slices each step
    return _small(model, DrawnDigits.Config(), STEPS)


def mmdit_tiny() -> kn.Config:
    """Returns a model that draws shapes of 16 pixels by a text, which it reads itself; `--data` names other pairs."""
    model = kn.component("models", "mmdit-tiny", asker="kanawa-runtime")()
    for stack in (*model.denoiser.stack.stacks, model.encoder.stack):
        stack.set(scan=False)
    data = DrawnCaptions.Config()
    data.fit(model)
    return _small(model, data, TEXT_STEPS)


def _small(model: Any, data: DataSource.Config, steps: int) -> kn.Config:
    return Trainer.Config(
        model=model,
        data=data,
        batch_size=32,
        steps=steps,
        learner=Learner.Config(
            optimizer=Muon.Config(newton_schulz_steps=3),
            schedule=WarmupCosine.Config(peak=1e-2, warmup_fraction=0.1, final_fraction=0.02),
            average=MovingAverage.Config(decay=0.99),
        ),
        evaluation=EvaluationPolicy(every_steps=250),
        checkpoints=CheckpointPolicy(every_steps=250),
    )


def dit_xl_2() -> kn.Config:
    """Returns DiT-XL/2 at 256 pictures a step (arXiv:2212.09748, section 4), of random latents: for plans."""
    return Trainer.Config(
        model=kn.component("models", "dit-xl-2", asker="kanawa-runtime")(),
        data=LabelledLatents.Config(),
        batch_size=256,
        precision=PrecisionConfig(compute="bfloat16"),
        steps=400_000,
        learner=Learner.Config(
            optimizer=AdamW.Config(weight_decay=0.0),
            schedule=Constant.Config(peak=1e-4),
            average=MovingAverage.Config(decay=0.9999),
        ),
    )
