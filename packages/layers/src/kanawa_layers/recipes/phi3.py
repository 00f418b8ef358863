"""Phi-3 (arXiv:2404.14219) and Phi-4 (arXiv:2412.08905): Llama whose checkpoints fuse projections."""

from typing import Any

import kanawa as kn
from kanawa.contracts import ForeignFamily

from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import Foreign
from kanawa_layers.recipes.llama import llama, llama_from, llama_keys, sized


def phi3(*, window: int | None = None, vocab_size: int = 32_064, **shape: Any) -> DecoderLM.Config:
    """Returns a Phi-3 or Phi-4 of any size; `shape` as for `llama`."""
    cfg = llama(vocab_size=vocab_size, **shape)
    attention, feed_forward = cfg.stack.layer.attention, cfg.stack.layer.feed_forward
    attention.set(window=window)
    attention.foreign.set(joined=(kn.foreign.Joined(name="qkv_proj", parts=("query", "key", "value")),))
    feed_forward.foreign.set(joined=(kn.foreign.Joined(name="gate_up_proj", parts=("gate", "up")),))
    return cfg


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `phi3` config.json; one stretched by LongRoPE is refused."""
    return llama_from(config, phi3, window=config.get("sliding_window"))


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    positions = cfg.stack.layer.attention.positions
    keys = {
        **llama_keys(cfg, "Phi3ForCausalLM"),
        "sliding_window": cfg.stack.layer.attention.window,
        # Its default is a token of the released vocabulary.
        "pad_token_id": None,
        "original_max_position_embeddings": positions.trained_length or 4096,
    }
    # Phi3Config has no such field: heads are width / num_heads.
    del keys["head_dim"]
    return keys


FAMILY = ForeignFamily(from_hf, to_hf)

#: Phi-3 mini with 4,096 tokens: 3,821,079,552 parameters.
phi3_mini = sized(phi3, 32, 3072, 32, 32, 8192, window=2047, trained_length=4096)
#: Phi-4: 14,659,507,200 parameters.
phi4 = sized(
    phi3,
    40,
    5120,
    40,
    10,
    17_920,
    vocab_size=100_352,
    positions=Rotary.Config(theta=250_000.0, trained_length=16_384),
)
