"""Llama 2 pretraining at its published batch: 4M tokens of 4,096-token rows; the data is a stand-in to replace."""

import sashimono as sm
from sashimono.contracts import PrecisionConfig

from sashimono_runtime.data.random_tokens import RandomTokens
from sashimono_runtime.learn.learner import Learner
from sashimono_runtime.learn.schedules import WarmupCosine
from sashimono_runtime.train.trainer import Trainer


def _pretrain(model: str, peak: float, batch_size: int = 1024, steps: int = 500_000) -> sm.Config:
    cfg = sm.component("models", model)()
    return Trainer.Config(
        model=cfg,
        data=RandomTokens.Config(sequence_length=4096, vocab_size=cfg.vocab_size),
        batch_size=batch_size,
        precision=PrecisionConfig(compute="bfloat16"),
        steps=steps,
        learner=Learner.Config(schedule=WarmupCosine.Config(peak=peak, warmup_steps=2000, decay_steps=steps)),
    )


def llama2_7b() -> sm.Config:
    """Returns Llama 2 7B pretraining: 1,024 rows of 4,096 tokens a step."""
    return _pretrain("llama2-7b", 3e-4)


def llama2_13b() -> sm.Config:
    """Returns Llama 2 13B pretraining: 1,024 rows of 4,096 tokens a step."""
    return _pretrain("llama2-13b", 3e-4)


def llama2_70b() -> sm.Config:
    """Returns Llama 2 70B pretraining: 1,024 rows of 4,096 tokens a step."""
    return _pretrain("llama2-70b", 1.5e-4)


def llama_1b() -> sm.Config:
    """Returns a 1.1B Llama at 4,096 tokens and 8 rows, for one accelerator of 80 GB or more."""
    return _pretrain("llama-1b", 4e-4, batch_size=8, steps=1000)
