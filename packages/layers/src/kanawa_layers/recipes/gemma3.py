"""Gemma 3, text (arXiv:2503.19786, table 1): five local layers for each global one, each kind with its own RoPE."""

from typing import Any

from kanawa.contracts import ForeignFamily

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.positions.frequency_scaling import LinearScaling
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.gemma2 import gemma_block, gemma_keys, gemma_model, gemma_sizes
from kanawa_layers.recipes.hf_config import FULL, SLIDING, Foreign, activation, expect, layer_types, rope_keys, rotary
from kanawa_layers.recipes.llama import sized

_FIVE_TO_ONE = (SLIDING,) * 5 + (FULL,)


def gemma3(
    *,
    num_layers: int,
    input_dim: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    head_dim: int = 256,
    query_scalar: float = 256,
    # 262,144 ids and 64 extra rows, one of them for the image token; the 1B model has no images and none of them.
    vocab_size: int = 262_208,
    window: int = 1024,
    kinds: tuple[str, ...] = _FIVE_TO_ONE,
    norm_eps: float = 1e-6,
    local_positions: Rotary.Config | None = None,
    global_positions: Rotary.Config | None = None,
) -> DecoderLM.Config:
    """Returns a Gemma 3 of any size; scores are multiplied by query_scalar ** -0.5."""
    norm = RMSNorm.Config(eps=norm_eps, zero_centered=True)
    near = local_positions or Rotary.Config(theta=10_000.0, trained_length=32_768)
    # Only for global layers: a window of 1,024 tokens never exceeds the trained distances.
    stretched = LinearScaling.Config(factor=8.0)
    far = global_positions or Rotary.Config(theta=1_000_000.0, scaling=stretched, trained_length=32_768)
    shape: dict[str, Any] = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
    # Norms of queries and keys in place of Gemma 2's cap on scores.
    attention = GroupedQueryAttention.Config(
        **shape, scale=query_scalar**-0.5, query_norm=norm, key_norm=norm, positions=far
    )
    windowed = attention.clone(window=window, positions=near)
    pattern = tuple(gemma_block(windowed if kind == SLIDING else attention, hidden_dim, norm_eps) for kind in kinds)
    return gemma_model(pattern, num_layers, input_dim, vocab_size, norm_eps)


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `gemma3_text` config.json."""
    expect(
        config,
        attention_bias=False,
        tie_word_embeddings=True,
        use_bidirectional_attention=False,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
    )
    local = {"rope_theta": config.get("rope_local_base_freq", 10_000.0)}
    usual = (SLIDING,) * (config.get("sliding_window_pattern", 6) - 1) + (FULL,)
    nested = SLIDING in (config.get("rope_parameters") or {})
    near = rotary(config, SLIDING) if nested else rotary(local)
    far = rotary({"rope_theta": 1_000_000.0, **config}, FULL)
    cfg = gemma3(
        **gemma_sizes(config),
        window=config["sliding_window"],
        kinds=layer_types(config, usual),
        # The config has the local base separately, and one length of sequences for both.
        local_positions=near.set(trained_length=far.trained_length),
        global_positions=far,
    )
    for block in cfg.stack.pattern:
        block.feed_forward.set(activation=activation(config.get("hidden_activation", "gelu_pytorch_tanh")))
    return cfg


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    by_kind = {block.attention.window is None: block.attention.positions for block in cfg.stack.pattern}
    far = by_kind.get(True, Rotary.Config(theta=1_000_000.0))
    near = by_kind.get(False, Rotary.Config())
    keys = {**gemma_keys(cfg, "Gemma3ForCausalLM"), **rope_keys(far)}
    return {**keys, "rope_local_base_freq": near.theta}


FAMILY = ForeignFamily(from_hf, to_hf)


def gemma3_1b() -> DecoderLM.Config:
    """Returns Gemma 3 1B: 999,885,952 parameters, not stretched."""
    return gemma3(
        num_layers=26,
        input_dim=1152,
        num_heads=4,
        num_kv_heads=1,
        hidden_dim=6912,
        vocab_size=262_144,
        window=512,
        global_positions=Rotary.Config(theta=1_000_000.0, trained_length=32_768),
    )


#: The text model of Gemma 3 4B: 3,880,263,168 parameters.
gemma3_4b = sized(gemma3, 34, 2560, 8, 4, 10_240)
#: The text model of Gemma 3 12B: 11,766,034,176 parameters.
gemma3_12b = sized(gemma3, 48, 3840, 16, 8, 15_360)
#: The text model of Gemma 3 27B: 27,009,346,304 parameters; scores scaled by width / heads.
gemma3_27b = sized(gemma3, 62, 5376, 32, 16, 21_504, head_dim=128, query_scalar=168)
