"""Qwen2 (arXiv:2407.10671) and Qwen2.5 (arXiv:2412.15115): Llama with biases on queries, keys and values."""

from typing import Any

from kanawa.contracts import ForeignFamily

from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import Foreign, expect
from kanawa_layers.recipes.llama import llama, llama_from, llama_keys


def qwen2(*, vocab_size: int = 151_936, norm_eps: float = 1e-6, **shape: Any) -> DecoderLM.Config:
    """Returns a Qwen2 or Qwen2.5 of any size; `shape` as for `llama`."""
    shape.setdefault("positions", Rotary.Config(theta=1_000_000.0, trained_length=32_768))
    cfg = llama(vocab_size=vocab_size, norm_eps=norm_eps, **shape)
    # On these three only: the Qwen report (arXiv:2309.16609) has them for longer contexts.
    for name in ("query", "key", "value"):
        getattr(cfg.stack.layer.attention, name).set(bias=True)
    return cfg


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `qwen2` config.json."""
    # These configs have a `sliding_window` anyway; it is unused while this is false.
    expect(config, use_sliding_window=False)
    return llama_from(config, qwen2)


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    keys = llama_keys(cfg, "Qwen2ForCausalLM")
    # Qwen2Config has no such field: heads are width / num_heads.
    del keys["head_dim"]
    return keys


FAMILY = ForeignFamily(from_hf, to_hf)


def qwen2_05b() -> DecoderLM.Config:
    """Returns Qwen2 or Qwen2.5 0.5B: 494,032,768 parameters, tied."""
    return qwen2(num_layers=24, input_dim=896, num_heads=14, num_kv_heads=2, hidden_dim=4864, tied=True)


def qwen2_15b() -> DecoderLM.Config:
    """Returns Qwen2 or Qwen2.5 1.5B: 1,543,714,304 parameters, tied."""
    return qwen2(num_layers=28, input_dim=1536, num_heads=12, num_kv_heads=2, hidden_dim=8960, tied=True)


def qwen25_3b() -> DecoderLM.Config:
    """Returns Qwen2.5 3B: 3,085,938,688 parameters, tied."""
    return qwen2(num_layers=36, input_dim=2048, num_heads=16, num_kv_heads=2, hidden_dim=11_008, tied=True)


def qwen2_7b() -> DecoderLM.Config:
    """Returns Qwen2 or Qwen2.5 7B: 7,615,616,512 parameters."""
    return qwen2(num_layers=28, input_dim=3584, num_heads=28, num_kv_heads=4, hidden_dim=18_944, vocab_size=152_064)


def qwen25_14b() -> DecoderLM.Config:
    """Returns Qwen2.5 14B: 14,770,033,664 parameters."""
    return qwen2(num_layers=48, input_dim=5120, num_heads=40, num_kv_heads=8, hidden_dim=13_824, vocab_size=152_064)


def qwen25_32b() -> DecoderLM.Config:
    """Returns Qwen2.5 32B: 32,763,876,352 parameters."""
    return qwen2(num_layers=64, input_dim=5120, num_heads=40, num_kv_heads=8, hidden_dim=27_648, vocab_size=152_064)


def qwen2_72b() -> DecoderLM.Config:
    """Returns Qwen2 or Qwen2.5 72B: 72,706,203,648 parameters."""
    return qwen2(num_layers=80, input_dim=8192, num_heads=64, num_kv_heads=8, hidden_dim=29_568, vocab_size=152_064)
