"""SmolLM3 (Hugging Face 2025, the released config): Llama whose every fourth layer has no positions."""

from typing import Any

from kanawa.contracts import ForeignFamily

from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.head import TiedHead
from kanawa_layers.positions.biases import NoPositions
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import (
    Foreign,
    activation,
    activation_name,
    expect,
    period_of,
    repeated,
    rope_keys,
    rotary,
    size_keys,
    sizes,
)
from kanawa_layers.recipes.llama import llama, sized
from kanawa_layers.stack.pattern import PatternStack


def smollm3(
    *,
    rope: tuple[bool, ...] = (True, True, True, False),
    vocab_size: int = 128_256,
    norm_eps: float = 1e-6,
    tied: bool = True,
    **shape: Any,
) -> DecoderLM.Config:
    """Returns a SmolLM3 of any size; `shape` as for `llama`, `rope` says which layers of the pattern have positions."""
    shape.setdefault("positions", Rotary.Config(theta=5_000_000.0, trained_length=65_536))
    cfg = llama(vocab_size=vocab_size, norm_eps=norm_eps, tied=tied, **shape)
    layer = cfg.stack.layer
    without = layer.clone(attention=layer.attention.clone(positions=NoPositions.Config()))
    pattern = tuple(layer if has_rope else without for has_rope in rope)
    cfg.set(stack=PatternStack.Config(num_layers=cfg.stack.num_layers, pattern=pattern))
    return cfg


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `smollm3` config.json."""
    expect(config, attention_bias=False, mlp_bias=False, use_sliding_window=False)
    interval, count = config.get("no_rope_layer_interval", 4), config["num_hidden_layers"]
    # In spite of the name, a 1 in `no_rope_layers` says that the layer has RoPE.
    rope = config.get("no_rope_layers") or [(i + 1) % interval != 0 for i in range(count)]
    cfg = smollm3(
        **sizes(config),
        rope=period_of([bool(has_rope) for has_rope in rope[:count]]),
        tied=config.get("tie_word_embeddings", True),
        positions=rotary(config),
    )
    for block in cfg.stack.pattern:
        block.feed_forward.set(activation=activation(config.get("hidden_act", "silu")))
    return cfg


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    blocks = repeated(cfg.stack.pattern, cfg.stack.num_layers)
    rope = [isinstance(block.attention.positions, Rotary.Config) for block in blocks]
    rotated = blocks[rope.index(True)]
    keys = {
        "architectures": ["SmolLM3ForCausalLM"],
        **size_keys(cfg, rotated.attention, rotated.feed_forward.hidden_dim),
        **rope_keys(rotated.attention.positions),
        "hidden_act": activation_name(rotated.feed_forward.activation),
        # Its default is a token of the released vocabulary.
        "pad_token_id": None,
        "no_rope_layers": [int(has_rope) for has_rope in rope],
        "tie_word_embeddings": isinstance(cfg.head, TiedHead.Config),
    }
    # SmolLM3Config has no such field: heads are width / num_heads.
    del keys["head_dim"]
    return keys


FAMILY = ForeignFamily(from_hf, to_hf)

#: SmolLM3 3B: 3,075,098,624 parameters, tied.
smollm3_3b = sized(smollm3, 36, 2048, 16, 4, 11_008)
