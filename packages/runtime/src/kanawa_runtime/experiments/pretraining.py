"""What pretraining experiments have in common; the data is a stand-in to replace."""

import kanawa as kn
from kanawa.contracts import PrecisionConfig

from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import WarmupCosine
from kanawa_runtime.train.trainer import Trainer


def pretraining(
    model: str, peak: float, batch_size: int = 1024, steps: int = 500_000, sequence_length: int = 4096
) -> kn.Config:
    """Returns bf16 training of a catalogued model with AdamW, warmed up to the learning rate `peak`.

    The warm-up is the usual 2,000 steps, or a tenth of a run that is too short for them.
    """
    cfg = kn.component("models", model, asker="kanawa-runtime")()
    return Trainer.Config(
        model=cfg,
        data=RandomTokens.Config(sequence_length=sequence_length, vocab_size=cfg.vocab_size),
        batch_size=batch_size,
        precision=PrecisionConfig(compute="bfloat16"),
        steps=steps,
        learner=Learner.Config(schedule=WarmupCosine.Config(peak=peak, warmup_fraction=min(2000 / steps, 0.1))),
    )
