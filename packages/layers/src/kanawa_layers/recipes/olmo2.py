"""OLMo 2 (arXiv:2501.00656): norms on the branches' outputs, and on all heads' queries and keys at once."""

from typing import Any

from kanawa.contracts import ForeignFamily

from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import Foreign, expect
from kanawa_layers.recipes.llama import llama, llama_from, llama_keys, sized
from kanawa_layers.stack.residual_blocks import OutputNormBlock


def olmo2(*, vocab_size: int = 100_352, norm_eps: float = 1e-6, **shape: Any) -> DecoderLM.Config:
    """Returns an OLMo 2 of any size; `shape` as for `llama`."""
    shape.setdefault("positions", Rotary.Config(theta=500_000.0, trained_length=4096))
    cfg = llama(vocab_size=vocab_size, norm_eps=norm_eps, **shape)
    layer, norm = cfg.stack.layer, RMSNorm.Config(eps=norm_eps)
    layer.attention.set(query_norm=norm, key_norm=norm, norm_all_heads=True)
    block = OutputNormBlock.Config(
        attention=layer.attention, feed_forward=layer.feed_forward, attention_norm=norm, feed_forward_norm=norm
    )
    cfg.stack.set(layer=block)
    return cfg


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of an `olmo2` config.json."""
    expect(config, attention_bias=False)
    return llama_from(config, olmo2)


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    keys = llama_keys(cfg, "Olmo2ForCausalLM")
    # Olmo2Config has no such field: heads are width / num_heads.
    del keys["head_dim"]
    return keys


FAMILY = ForeignFamily(from_hf, to_hf)

#: OLMo 2 1B: 1,484,916,736 parameters.
olmo2_1b = sized(olmo2, 16, 2048, 16, 16, 8192)
#: OLMo 2 7B: 7,298,617,344 parameters.
olmo2_7b = sized(olmo2, 32, 4096, 32, 32, 11_008)
#: OLMo 2 13B: 13,716,198,400 parameters.
olmo2_13b = sized(olmo2, 40, 5120, 40, 40, 13_824)
#: OLMo 2 32B: 32,234,279,936 parameters.
olmo2_32b = sized(olmo2, 64, 5120, 40, 8, 27_648)
