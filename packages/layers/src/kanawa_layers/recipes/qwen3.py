"""Qwen3, dense (arXiv:2505.09388, table 1): Llama with normalised queries and keys, and heads of 128."""

from typing import Any

from kanawa.contracts import ForeignFamily

from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import Foreign, expect
from kanawa_layers.recipes.llama import llama, llama_from, llama_keys, sized


def qwen3(*, vocab_size: int = 151_936, norm_eps: float = 1e-6, **shape: Any) -> DecoderLM.Config:
    """Returns a Qwen3 of any size; `shape` as for `llama`."""
    shape.setdefault("positions", Rotary.Config(theta=1_000_000.0, trained_length=32_768))
    cfg = llama(vocab_size=vocab_size, norm_eps=norm_eps, **shape)
    norm = RMSNorm.Config(eps=norm_eps)
    cfg.stack.layer.attention.set(query_norm=norm, key_norm=norm)
    return cfg


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `qwen3` config.json."""
    expect(config, use_sliding_window=False, attention_bias=False)
    return llama_from(config, qwen3)


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    return llama_keys(cfg, "Qwen3ForCausalLM")


FAMILY = ForeignFamily(from_hf, to_hf)

#: Qwen3 0.6B: 596,049,920 parameters, tied.
qwen3_06b = sized(qwen3, 28, 1024, 16, 8, 3072, head_dim=128, tied=True)
#: Qwen3 1.7B: 1,720,574,976 parameters, tied.
qwen3_17b = sized(qwen3, 28, 2048, 16, 8, 6144, tied=True)
#: Qwen3 4B: 4,022,468,096 parameters, tied.
qwen3_4b = sized(qwen3, 36, 2560, 32, 8, 9728, head_dim=128, tied=True)
#: Qwen3 8B: 8,190,735,360 parameters.
qwen3_8b = sized(qwen3, 36, 4096, 32, 8, 12_288)
#: Qwen3 14B: 14,768,307,200 parameters.
qwen3_14b = sized(qwen3, 40, 5120, 40, 8, 17_408)
#: Qwen3 32B: 32,762,123,264 parameters.
qwen3_32b = sized(qwen3, 64, 5120, 64, 8, 25_600, head_dim=128)
