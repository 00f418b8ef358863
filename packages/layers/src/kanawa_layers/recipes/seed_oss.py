"""Seed-OSS (ByteDance 2025, the released config): Llama with biases on queries, keys and values, heads of 128."""

from typing import Any

from kanawa.contracts import ForeignFamily

from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import Foreign, expect
from kanawa_layers.recipes.llama import llama_from, llama_keys, sized
from kanawa_layers.recipes.qwen2 import qwen2


def seed_oss(*, vocab_size: int = 155_136, head_dim: int | None = 128, **shape: Any) -> DecoderLM.Config:
    """Returns a Seed-OSS of any size; `shape` as for `qwen2`."""
    shape.setdefault("positions", Rotary.Config(theta=10_000_000.0, trained_length=524_288))
    return qwen2(vocab_size=vocab_size, head_dim=head_dim, **shape)


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `seed_oss` config.json."""
    # Its dropout of 0.1 isn't taken over: a learner's choice here, by `--modify dropout`.
    expect(config, attention_bias=True, attention_out_bias=False, mlp_bias=False)
    return llama_from(config, seed_oss)


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    biases = {"attention_bias": True, "attention_out_bias": False, "mlp_bias": False}
    return {**llama_keys(cfg, "SeedOssForCausalLM"), **biases, "attention_dropout": 0.0, "residual_dropout": 0.0}


FAMILY = ForeignFamily(from_hf, to_hf)

#: Seed-OSS 36B: 36,151,104,512 parameters.
seed_oss_36b = sized(seed_oss, 64, 5120, 80, 8, 27_648)
