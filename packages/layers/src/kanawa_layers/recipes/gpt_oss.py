"""gpt-oss 20b and 120b (OpenAI 2025, model card, arXiv:2508.10925, table 1): sinks, alternating windows, clamped
experts.

The released checkpoints store expert weights in MXFP4, which can't be converted; bfloat16 copies can.
"""

from functools import partial
from typing import Any

import kanawa as kn
from kanawa.contracts import ForeignFamily

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.attention.slots import LearnedSinks
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.feedforward.activations import quick_gelu
from kanawa_layers.feedforward.gated import ClampedProduct
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.head import TiedHead, UntiedHead
from kanawa_layers.moe.experts import GatedExperts
from kanawa_layers.moe.mixture import MixtureOfExperts
from kanawa_layers.moe.router import TopKRouter
from kanawa_layers.positions.frequency_scaling import YarnScaling
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import (
    FULL,
    SLIDING,
    Foreign,
    expect,
    layer_types,
    repeated,
    rope_keys,
    rotary,
    size_keys,
    sizes,
)
from kanawa_layers.stack.pattern import PatternStack
from kanawa_layers.stack.residual_blocks import PreNormBlock

# [experts, in, out], where torch's Linear is [out, in].
_IN_OUT = kn.foreign.Matrix.Config(transposed=False)
#: All experts in one tensor; gate and up columns, and their biases, alternate.
_EXPERTS = kn.foreign.Names(
    tensors={
        "gate": kn.foreign.Tensor(form=_IN_OUT),
        "up": kn.foreign.Tensor(form=_IN_OUT),
        "down": kn.foreign.Tensor(name="down_proj", form=_IN_OUT),
        "down_bias": "down_proj_bias",
    },
    joined=(
        kn.foreign.Joined(name="gate_up_proj", parts=("gate", "up"), axis=-1, interleaved=True),
        kn.foreign.Joined(name="gate_up_proj_bias", parts=("gate_bias", "up_bias"), axis=-1, interleaved=True),
    ),
)


def gpt_oss(
    *,
    num_layers: int,
    num_experts: int,
    input_dim: int = 2880,
    num_heads: int = 64,
    num_kv_heads: int = 8,
    head_dim: int | None = 64,
    hidden_dim: int = 2880,
    top_k: int = 4,
    vocab_size: int = 201_088,
    window: int = 128,
    kinds: tuple[str, ...] = (SLIDING, FULL),
    limit: float = 7.0,
    norm_eps: float = 1e-5,
    tied: bool = False,
    positions: Rotary.Config | None = None,
) -> DecoderLM.Config:
    """Returns a gpt-oss of any size."""
    norm, biased = RMSNorm.Config(eps=norm_eps), Linear.Config(bias=True)
    rope = positions or Rotary.Config(
        theta=150_000.0, scaling=YarnScaling.Config(factor=32.0, original_length=4096, truncate=False)
    )
    mixture = MixtureOfExperts.Config(
        hidden_dim=hidden_dim,
        num_experts=num_experts,
        router=TopKRouter.Config(top_k=top_k, bias=True),
        experts=GatedExperts.Config(
            activation=quick_gelu, gating=ClampedProduct.Config(limit=limit), bias=True, foreign=_EXPERTS
        ),
    )
    mixture.foreign.children["router"] = "router"
    pattern = tuple(
        PreNormBlock.Config(
            attention=GroupedQueryAttention.Config(
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                window=window if kind == SLIDING else None,
                query=biased,
                key=biased,
                value=biased,
                output=biased,
                sinks=LearnedSinks.Config(),
                positions=rope,
            ),
            feed_forward=mixture,
            attention_norm=norm,
            feed_forward_norm=norm,
        )
        for kind in kinds
    )
    return DecoderLM.Config(
        vocab_size=vocab_size,
        input_dim=input_dim,
        stack=PatternStack.Config(num_layers=num_layers, pattern=pattern),
        norm=norm,
        head=TiedHead.Config() if tied else UntiedHead.Config(),
    )


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `gpt_oss` config.json."""
    # The config says silu, but the model computes x * sigmoid(1.702 x), clamped.
    expect(config, attention_bias=True, hidden_act="silu", swiglu_alpha=1.702)
    return gpt_oss(
        **sizes(config),
        num_experts=config["num_local_experts"],
        top_k=config["num_experts_per_tok"],
        window=config["sliding_window"],
        kinds=layer_types(config, (SLIDING, FULL)),
        limit=config.get("swiglu_limit", 7.0),
        tied=config.get("tie_word_embeddings", False),
        positions=rotary({"rope_theta": 150_000.0, **config}),
    )


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    blocks = cfg.stack.pattern
    attention, mixture = blocks[0].attention, blocks[0].feed_forward
    windows = [block.attention.window for block in blocks]
    kinds = [FULL if window is None else SLIDING for window in windows]
    return {
        "architectures": ["GptOssForCausalLM"],
        **size_keys(cfg, attention, mixture.hidden_dim),
        **rope_keys(attention.positions),
        "attention_bias": True,
        "hidden_act": "silu",
        "num_local_experts": mixture.num_experts,
        "num_experts_per_tok": mixture.router.top_k,
        "sliding_window": next((window for window in windows if window is not None), 128),
        "layer_types": repeated(kinds, cfg.stack.num_layers),
        "swiglu_limit": mixture.experts.gating.limit,
        "tie_word_embeddings": isinstance(cfg.head, TiedHead.Config),
    }


FAMILY = ForeignFamily(from_hf, to_hf)

#: Gpt-oss 20b: 20,914,757,184 parameters, 3.6B of them active.
gpt_oss_20b = partial(gpt_oss, num_layers=24, num_experts=32)
#: Gpt-oss 120b: 116,829,156,672 parameters, 5.1B of them active.
gpt_oss_120b = partial(gpt_oss, num_layers=36, num_experts=128)
