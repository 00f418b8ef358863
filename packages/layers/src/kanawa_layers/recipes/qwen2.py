"""Qwen2 (arXiv:2407.10671) and Qwen2.5 (arXiv:2412.15115): Llama with biases on queries, keys and values."""

from typing import Any

from kanawa.contracts import ForeignFamily

from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import Foreign, expect
from kanawa_layers.recipes.llama import llama, llama_from, llama_keys, sized


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

#: Qwen2 or Qwen2.5 0.5B: 494,032,768 parameters, tied.
qwen2_05b = sized(qwen2, 24, 896, 14, 2, 4864, tied=True)
#: Qwen2 or Qwen2.5 1.5B: 1,543,714,304 parameters, tied.
qwen2_15b = sized(qwen2, 28, 1536, 12, 2, 8960, tied=True)
#: Qwen2.5 3B: 3,085,938,688 parameters, tied.
qwen25_3b = sized(qwen2, 36, 2048, 16, 2, 11_008, tied=True)
#: Qwen2 or Qwen2.5 7B: 7,615,616,512 parameters.
qwen2_7b = sized(qwen2, 28, 3584, 28, 4, 18_944, vocab_size=152_064)
#: Qwen2.5 14B: 14,770,033,664 parameters.
qwen25_14b = sized(qwen2, 48, 5120, 40, 8, 13_824, vocab_size=152_064)
#: Qwen2.5 32B: 32,763,876,352 parameters.
qwen25_32b = sized(qwen2, 64, 5120, 40, 8, 27_648, vocab_size=152_064)
#: Qwen2 or Qwen2.5 72B: 72,706,203,648 parameters.
qwen2_72b = sized(qwen2, 80, 8192, 64, 8, 29_568, vocab_size=152_064)
