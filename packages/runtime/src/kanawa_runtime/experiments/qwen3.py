"""Qwen3 mixture pretraining at the batch of the published step: 16M tokens of 32,768-token rows."""

import kanawa as kn

from kanawa_runtime.experiments.pretraining import pretraining


def qwen3_30b_a3b() -> kn.Config:
    """Returns Qwen3 30B-A3B pretraining: 512 rows of 32,768 tokens a step."""
    return pretraining("qwen3-30b-a3b", 3e-4, batch_size=512, sequence_length=32_768)
