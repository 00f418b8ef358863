"""Mistral 7B (arXiv:2310.06825): Llama with windowed attention; later releases have no window."""

from functools import partial
from typing import Any

from kanawa.contracts import ForeignFamily

from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import Foreign
from kanawa_layers.recipes.llama import llama, llama_from, llama_keys


def mistral(*, window: int | None = None, **shape: Any) -> DecoderLM.Config:
    """Returns a Mistral of any size; `shape` as for `llama`."""
    cfg = llama(**shape)
    cfg.stack.layer.attention.set(window=window)
    return cfg


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `mistral` config.json."""
    # The window is null from v0.2 on.
    return llama_from(config, mistral, window=config.get("sliding_window"))


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    return {**llama_keys(cfg, "MistralForCausalLM"), "sliding_window": cfg.stack.layer.attention.window}


FAMILY = ForeignFamily(from_hf, to_hf)

_SHAPE = {"num_layers": 32, "input_dim": 4096, "num_heads": 32, "num_kv_heads": 8, "hidden_dim": 14_336}

#: Mistral 7B v0.1: 7,241,732,096 parameters, window 4,096.
mistral_7b = partial(mistral, window=4096, trained_length=32_768, **_SHAPE)


def mistral_7b_v3() -> DecoderLM.Config:
    """Returns Mistral 7B v0.3: 7,248,023,552 parameters, no window, base 1,000,000."""
    return mistral(vocab_size=32_768, positions=Rotary.Config(theta=1_000_000.0, trained_length=32_768), **_SHAPE)
