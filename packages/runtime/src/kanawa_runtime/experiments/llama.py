"""Llama 2 pretraining at its published batch: 4M tokens of 4,096-token rows."""

import kanawa as kn

from kanawa_runtime.experiments.pretraining import pretraining


def llama2_7b() -> kn.Config:
    """Returns Llama 2 7B pretraining: 1,024 rows of 4,096 tokens a step."""
    return pretraining("llama2-7b", 3e-4)


def llama2_13b() -> kn.Config:
    """Returns Llama 2 13B pretraining: 1,024 rows of 4,096 tokens a step."""
    return pretraining("llama2-13b", 3e-4)


def llama2_70b() -> kn.Config:
    """Returns Llama 2 70B pretraining: 1,024 rows of 4,096 tokens a step."""
    return pretraining("llama2-70b", 1.5e-4)


def llama_1b() -> kn.Config:
    """Returns a 1.1B Llama at 4,096 tokens and 8 rows, for one accelerator of 80 GB or more."""
    cfg = pretraining("llama-1b", 4e-4, batch_size=8, steps=1000)
    # The recipe's are of the model that was published, which read rows half as long.
    cfg.model.stack.layer.attention.positions.set(trained_length=cfg.data.sequence_length)
    return cfg
