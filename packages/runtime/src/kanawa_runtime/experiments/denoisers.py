"""Large diffusion models of texts as experiments: their sizes and batches; the data is a stand-in to replace."""

from typing import Any

import kanawa as kn
from kanawa.contracts import PrecisionConfig

from kanawa_runtime.data.random_latents import RandomLatents
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import WarmupCosine
from kanawa_runtime.train.policies import EvaluationPolicy
from kanawa_runtime.train.trainer import Trainer


def sd3_medium() -> kn.Config:
    """Returns Stable Diffusion 3 medium on latents of 1,024 pixels with precomputed states of texts."""
    return _of_latents("sd3-medium", batch_size=256)


def wan21_14b() -> kn.Config:
    """Returns Wan 2.1 14B on 81 frames of 1280 x 720 pixels, 75,600 tokens, 32 videos a step: the published batch."""
    model = kn.component("models", "wan2.1-14b", asker="kanawa-runtime")()
    # Kernels take rows of multiples of 128, on each of four devices that share one. A video model halves time twice,
    # and pixels three times: 81 frames are 21.
    model.denoiser.set(shape=(21, 90, 160), token_multiple=512)
    return _of_latents(model, batch_size=32)


def _of_latents(model: Any, batch_size: int, steps: int = 100_000) -> kn.Config:
    cfg: Any = kn.component("models", model, asker="kanawa-runtime")() if isinstance(model, str) else model
    network = cfg.denoiser
    data = RandomLatents.Config(
        shape=network._target.made_by(network).shape,
        text_length=network.text_length,
        text_dim=network.text_dim,
        pooled_dim=vars(network).get("pooled_dim"),
    )
    return Trainer.Config(
        model=cfg,
        data=data,
        batch_size=batch_size,
        precision=PrecisionConfig(compute="bfloat16"),
        steps=steps,
        learner=Learner.Config(schedule=WarmupCosine.Config(peak=1e-4, warmup_fraction=0.01)),
        evaluation=EvaluationPolicy(every_steps=1000, max_batches=1),
    )
