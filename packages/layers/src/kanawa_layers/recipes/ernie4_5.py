"""ERNIE 4.5, dense (Baidu 2025, the released config): Llama with interleaved rotation."""

from typing import Any

from kanawa.contracts import ForeignFamily

from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import Foreign, expect
from kanawa_layers.recipes.llama import llama, llama_from, llama_keys, sized


def ernie45(*, vocab_size: int = 103_424, tied: bool = True, **shape: Any) -> DecoderLM.Config:
    """Returns an ERNIE 4.5 of any size; `shape` as for `llama`."""
    shape.setdefault("positions", Rotary.Config(theta=500_000.0, trained_length=131_072))
    cfg = llama(vocab_size=vocab_size, tied=tied, **shape)
    cfg.stack.layer.attention.positions.set(interleaved=True)
    return cfg


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of an `ernie4_5` config.json."""
    expect(config, use_bias=False)
    return llama_from({"rope_theta": 500_000.0, **config}, ernie45)


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    return {**llama_keys(cfg, "Ernie4_5ForCausalLM"), "use_bias": False}


FAMILY = ForeignFamily(from_hf, to_hf)

#: ERNIE 4.5 0.3B: 360,748,032 parameters, tied.
ernie45_03b = sized(ernie45, 18, 1024, 16, 2, 3072, head_dim=128)
