"""Gemma 2 (arXiv:2408.00118, table 1): sandwich norms, alternating local and global layers, soft-capped logits."""

from typing import Any

from kanawa.contracts import ForeignFamily

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.basic.embedding import Embedding
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.feedforward.activations import gelu_tanh
from kanawa_layers.feedforward.gated import GatedFeedForward
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.head import TiedHead
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
from kanawa_layers.stack.pattern import PatternStack
from kanawa_layers.stack.residual_blocks import SandwichNormBlock


def gemma_block(attention: GroupedQueryAttention.Config, hidden_dim: int, norm_eps: float) -> SandwichNormBlock.Config:
    """Returns a block of Gemma 2 or 3 around its attention."""
    norm = RMSNorm.Config(eps=norm_eps, zero_centered=True)
    return SandwichNormBlock.Config(
        attention=attention,
        feed_forward=GatedFeedForward.Config(hidden_dim=hidden_dim, activation=gelu_tanh),
        attention_norm=norm,
        attention_output_norm=norm,
        feed_forward_norm=norm,
        feed_forward_output_norm=norm,
    )


def gemma_model(
    pattern: tuple[SandwichNormBlock.Config, ...], num_layers: int, input_dim: int, vocab_size: int, norm_eps: float
) -> DecoderLM.Config:
    """Returns a Gemma of these layers: scaled embeddings, zero-centred norm, tied head."""
    return DecoderLM.Config(
        vocab_size=vocab_size,
        input_dim=input_dim,
        embedding=Embedding.Config(scale_by_sqrt_dim=True),
        stack=PatternStack.Config(num_layers=num_layers, pattern=pattern),
        norm=RMSNorm.Config(eps=norm_eps, zero_centered=True),
        head=TiedHead.Config(),
    )


def gemma2(
    *,
    num_layers: int,
    input_dim: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    hidden_dim: int,
    query_scalar: float,
    vocab_size: int = 256_000,
    window: int = 4096,
    kinds: tuple[str, ...] = (SLIDING, FULL),
    norm_eps: float = 1e-6,
    attention_cap: float | None = 50.0,
    logit_cap: float | None = 30.0,
    positions: Rotary.Config | None = None,
) -> DecoderLM.Config:
    """Returns a Gemma 2 of any size; scores are multiplied by query_scalar ** -0.5."""
    shape: dict[str, Any] = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
    attention = GroupedQueryAttention.Config(
        **shape,
        scale=query_scalar**-0.5,
        logit_cap=attention_cap,
        positions=positions or Rotary.Config(trained_length=8192),
    )
    near = attention.clone(window=window)
    pattern = tuple(gemma_block(near if kind == SLIDING else attention, hidden_dim, norm_eps) for kind in kinds)
    cfg = gemma_model(pattern, num_layers, input_dim, vocab_size, norm_eps)
    cfg.head.set(logit_cap=logit_cap)
    return cfg


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `gemma2` config.json."""
    expect(config, attention_bias=False, tie_word_embeddings=True)
    cfg = gemma2(
        **gemma_sizes(config),
        window=config["sliding_window"],
        # Older configs don't list layer types: even layers are local then.
        kinds=layer_types(config, (SLIDING, FULL)),
        attention_cap=config.get("attn_logit_softcapping"),
        logit_cap=config.get("final_logit_softcapping"),
        positions=rotary(config),
    )
    for block in cfg.stack.pattern:
        # Not `hidden_act`, which these configs have too and Gemma 2's code doesn't read.
        block.feed_forward.set(activation=activation(config.get("hidden_activation", "gelu_pytorch_tanh")))
    return cfg


def gemma_sizes(config: Foreign) -> dict[str, Any]:
    """Returns the sizes of a Gemma 2 or 3, with the head's width written out and the scale of scores."""
    return {
        **sizes(config),
        "head_dim": config.get("head_dim", 256),
        "query_scalar": config.get("query_pre_attn_scalar", 256),
    }


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    attention = cfg.stack.pattern[0].attention
    return {
        **gemma_keys(cfg, "Gemma2ForCausalLM"),
        **rope_keys(attention.positions),
        "attn_logit_softcapping": attention.logit_cap,
        "final_logit_softcapping": cfg.head.logit_cap,
    }


def gemma_keys(cfg: Any, architecture: str) -> dict[str, Any]:
    """Returns the keys that Gemma 2 and 3 share."""
    blocks = cfg.stack.pattern
    attention = blocks[0].attention
    kinds = [FULL if block.attention.window is None else SLIDING for block in blocks]
    windows = [block.attention.window for block in blocks if block.attention.window is not None]
    return {
        "architectures": [architecture],
        **size_keys(cfg, attention, blocks[0].feed_forward.hidden_dim),
        "hidden_activation": activation_name(blocks[0].feed_forward.activation, "gelu_pytorch_tanh"),
        # The power of -0.5 isn't exactly invertible.
        "query_pre_attn_scalar": round(attention.scale**-2),
        "sliding_window": windows[0] if windows else 4096,
        "layer_types": repeated(kinds, cfg.stack.num_layers),
        "tie_word_embeddings": True,
    }


FAMILY = ForeignFamily(from_hf, to_hf)

#: Gemma 2 2B: 2,614,341,888 parameters.
gemma2_2b = sized(gemma2, 26, 2304, 8, 4, 9216, head_dim=256, query_scalar=256)
#: Gemma 2 9B: 9,241,705,984 parameters.
gemma2_9b = sized(gemma2, 42, 3584, 16, 8, 14_336, head_dim=256, query_scalar=256)
#: Gemma 2 27B: 27,227,128,320 parameters; scores are scaled by width / heads, not by the head's width.
gemma2_27b = sized(gemma2, 46, 4608, 32, 16, 36_864, head_dim=128, query_scalar=144)
