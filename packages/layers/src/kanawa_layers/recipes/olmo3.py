"""OLMo 3 (arXiv:2512.13961): OLMo 2 whose layers are local but for every fourth, which alone are stretched."""

from typing import Any

from kanawa.contracts import ForeignFamily

from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.head import TiedHead
from kanawa_layers.positions.frequency_scaling import YarnScaling
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import (
    FULL,
    SLIDING,
    Foreign,
    activation,
    activation_name,
    expect,
    layer_types,
    repeated,
    rope_keys,
    rotary,
    size_keys,
    sizes,
)
from kanawa_layers.recipes.llama import sized
from kanawa_layers.recipes.olmo2 import olmo2
from kanawa_layers.stack.pattern import PatternStack

_THREE_TO_ONE = (SLIDING,) * 3 + (FULL,)


def olmo3(
    *,
    window: int = 4096,
    kinds: tuple[str, ...] = _THREE_TO_ONE,
    vocab_size: int = 100_278,
    local_positions: Rotary.Config | None = None,
    global_positions: Rotary.Config | None = None,
    **shape: Any,
) -> DecoderLM.Config:
    """Returns an OLMo 3 of any size; `shape` as for `olmo2`."""
    near = local_positions or Rotary.Config(theta=500_000.0, trained_length=8192)
    stretched = YarnScaling.Config(factor=8.0, original_length=8192)
    far = global_positions or near.clone(scaling=stretched)
    cfg = olmo2(vocab_size=vocab_size, positions=far, **shape)
    full = cfg.stack.layer
    local = full.clone(attention=full.attention.clone(window=window, positions=near))
    pattern = tuple(local if kind == SLIDING else full for kind in kinds)
    cfg.set(stack=PatternStack.Config(num_layers=cfg.stack.num_layers, pattern=pattern))
    return cfg


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of an `olmo3` config.json."""
    expect(config, attention_bias=False)
    # One set of parameters, as in older configs, scales the full layers only.
    nested = SLIDING in (config.get("rope_parameters") or {})
    far = rotary(config, FULL)
    near = rotary(config, SLIDING) if nested else far.clone(scaling=None)
    cfg = olmo3(
        **sizes(config),
        window=config["sliding_window"],
        kinds=layer_types(config, _THREE_TO_ONE),
        tied=config.get("tie_word_embeddings", False),
        # The config has one length of sequences for both.
        local_positions=near.set(trained_length=far.trained_length),
        global_positions=far,
    )
    for block in cfg.stack.pattern:
        block.feed_forward.set(activation=activation(config.get("hidden_act", "silu")))
    return cfg


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    blocks = repeated(cfg.stack.pattern, cfg.stack.num_layers)
    by_kind = {block.attention.window is None: block.attention for block in blocks}
    any_layer = blocks[0]
    rope = rope_keys(by_kind.get(True, any_layer.attention).positions)
    keys = {
        "architectures": ["Olmo3ForCausalLM"],
        **size_keys(cfg, any_layer.attention, any_layer.feed_forward.hidden_dim),
        **rope,
        # transformers 5 gives `rope_theta` to one kind of layers only.
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": rope["rope_theta"], **rope.get("rope_scaling", {})},
            SLIDING: {"rope_type": "default", "rope_theta": by_kind[False].positions.theta},
        },
        "hidden_act": activation_name(any_layer.feed_forward.activation),
        "sliding_window": by_kind[False].window,
        "layer_types": [FULL if block.attention.window is None else SLIDING for block in blocks],
        "tie_word_embeddings": isinstance(cfg.head, TiedHead.Config),
    }
    # Olmo3Config has no such field: heads are width / num_heads.
    del keys["head_dim"]
    return keys


FAMILY = ForeignFamily(from_hf, to_hf)

#: OLMo 3 7B: 7,298,011,136 parameters.
olmo3_7b = sized(olmo3, 32, 4096, 32, 32, 11_008)
#: OLMo 3 32B: 32,233,522,176 parameters.
olmo3_32b = sized(olmo3, 64, 5120, 40, 8, 27_648)
