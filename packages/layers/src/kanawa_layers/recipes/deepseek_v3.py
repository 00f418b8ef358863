"""DeepSeek-V3 (arXiv:2412.19437, section 4.2): latent attention, three dense layers, then 256 experts a layer.

The released checkpoint's weights are fp8 and hold a 62nd layer for multi-token prediction; neither converts.
"""

from functools import partial
from typing import Any

import jax
from kanawa.contracts import ForeignFamily

from kanawa_layers.attention.latent import LatentAttention
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.feedforward.gated import GatedFeedForward
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.head import TiedHead, UntiedHead
from kanawa_layers.moe.experts import GatedExperts
from kanawa_layers.moe.mixture import MixtureOfExperts
from kanawa_layers.moe.router import BiasBalancing, GroupLimited, Sigmoid, TopKRouter
from kanawa_layers.positions.frequency_scaling import YarnScaling, yarn_mscale
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import (
    Foreign,
    Key,
    activation,
    activation_name,
    arguments,
    expect,
    rope_keys,
    rotary,
    written,
)
from kanawa_layers.stack.chained import ChainedStack
from kanawa_layers.stack.repeated import RepeatedStack
from kanawa_layers.stack.residual_blocks import PreNormBlock

_KEYS = (
    Key("first_k_dense_replace", "num_dense_layers", "stack.stacks[0].num_layers"),
    Key("hidden_size", "input_dim", "input_dim"),
    Key("intermediate_size", "hidden_dim", "stack.stacks[0].layer.feed_forward.hidden_dim"),
    Key("vocab_size", "vocab_size", "vocab_size"),
    Key("num_attention_heads", "num_heads", "stack.stacks[0].layer.attention.num_heads"),
    Key("q_lora_rank", "query_rank", "stack.stacks[0].layer.attention.query_rank"),
    Key("kv_lora_rank", "kv_rank", "stack.stacks[0].layer.attention.kv_rank"),
    Key("qk_nope_head_dim", "nope_dim", "stack.stacks[0].layer.attention.nope_dim"),
    Key("qk_rope_head_dim", "rope_dim", "stack.stacks[0].layer.attention.rope_dim"),
    Key("v_head_dim", "value_dim", "stack.stacks[0].layer.attention.value_dim"),
    Key("n_routed_experts", "num_experts", "stack.stacks[1].layer.feed_forward.num_experts"),
    Key("num_experts_per_tok", "top_k", "stack.stacks[1].layer.feed_forward.router.top_k"),
    Key("moe_intermediate_size", "expert_dim", "stack.stacks[1].layer.feed_forward.hidden_dim"),
    Key("n_group", "num_groups", "stack.stacks[1].layer.feed_forward.router.selection.num_groups"),
    Key("topk_group", "top_groups", "stack.stacks[1].layer.feed_forward.router.selection.top_groups"),
    Key("routed_scaling_factor", "weight_scale", "stack.stacks[1].layer.feed_forward.router.weight_scale"),
    Key("norm_topk_prob", "normalise_weights", "stack.stacks[1].layer.feed_forward.router.normalise_weights"),
    Key("rms_norm_eps", "norm_eps", "norm.eps", 1e-6),
)


def deepseek_v3(
    *,
    num_layers: int = 61,
    num_dense_layers: int = 3,
    input_dim: int = 7168,
    hidden_dim: int = 18_432,
    vocab_size: int = 129_280,
    num_heads: int = 128,
    query_rank: int | None = 1536,
    kv_rank: int = 512,
    nope_dim: int = 128,
    rope_dim: int = 64,
    value_dim: int = 128,
    num_experts: int = 256,
    top_k: int = 8,
    expert_dim: int = 2048,
    num_shared: int = 1,
    num_groups: int = 8,
    top_groups: int = 4,
    weight_scale: float = 2.5,
    normalise_weights: bool = True,
    norm_eps: float = 1e-6,
    tied: bool = False,
    positions: Rotary.Config | None = None,
) -> DecoderLM.Config:
    """Returns DeepSeek-V3, by default as released: 671,026,404,352 parameters and 14,848 balancing biases."""
    norm = RMSNorm.Config(eps=norm_eps)
    rope = positions or Rotary.Config(
        interleaved=True,
        scaling=YarnScaling.Config(factor=40.0, original_length=4096, mscale=1.0, mscale_all_dim=1.0),
    )
    attention = LatentAttention.Config(
        num_heads=num_heads,
        query_rank=query_rank,
        kv_rank=kv_rank,
        nope_dim=nope_dim,
        rope_dim=rope_dim,
        value_dim=value_dim,
        scale=_score_scale(nope_dim + rope_dim, rope),
        query_norm=norm,
        kv_norm=norm,
        positions=rope,
    )
    dense = PreNormBlock.Config(
        attention=attention,
        feed_forward=GatedFeedForward.Config(hidden_dim=hidden_dim, activation=jax.nn.silu),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    router = TopKRouter.Config(
        top_k=top_k,
        scoring=Sigmoid.Config(),
        selection=GroupLimited.Config(num_groups=num_groups, top_groups=top_groups),
        balancing=BiasBalancing.Config(),
        normalise_weights=normalise_weights,
        weight_scale=weight_scale,
        # The bias balances; the paper's small loss (section 4.2) prevents extremes within a sequence.
        balance_loss=0.0,
        row_balance_loss=1e-4,
        z_loss=0.0,
    )
    mixture = MixtureOfExperts.Config(
        hidden_dim=expert_dim,
        num_experts=num_experts,
        router=router,
        experts=GatedExperts.Config(activation=jax.nn.silu),
        # Several shared experts are one, as wide as all of them: a sum of SwiGLUs is a SwiGLU.
        shared=GatedFeedForward.Config(hidden_dim=num_shared * expert_dim, activation=jax.nn.silu),
    )
    stacks = (
        RepeatedStack.Config(num_layers=num_dense_layers, layer=dense),
        RepeatedStack.Config(num_layers=num_layers - num_dense_layers, layer=dense.clone(feed_forward=mixture)),
    )
    return DecoderLM.Config(
        vocab_size=vocab_size,
        input_dim=input_dim,
        stack=ChainedStack.Config(stacks=stacks),
        norm=norm,
        head=TiedHead.Config() if tied else UntiedHead.Config(),
    )


def _score_scale(query_dim: int, positions: Rotary.Config) -> float | None:
    """Returns the scale of scores where YaRN stretches the context; None for the usual query_dim ** -0.5."""
    scaling: Any = positions.scaling
    if scaling is None or not getattr(scaling, "mscale_all_dim", None):
        return None
    # On the scores and not on cos and sin: those reach only rope_dim of a head's dimensions.
    return float(query_dim**-0.5 * yarn_mscale(scaling.factor, scaling.mscale_all_dim) ** 2)


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `deepseek_v3` config.json."""
    # noaux_tc: balanced by bias, a group counting as the sum of its two best; V2's groups count by their maximum.
    expect(config, attention_bias=False, moe_layer_freq=1, scoring_func="sigmoid", topk_method="noaux_tc")
    act = activation(config.get("hidden_act", "silu"))
    cfg = deepseek_v3(
        **arguments(config, _KEYS),
        num_layers=config["num_hidden_layers"],
        num_shared=config["n_shared_experts"],
        tied=config.get("tie_word_embeddings", False),
        positions=rotary(config, interleaved=config.get("rope_interleave", True)),
    )
    dense, sparse = (stack.layer.feed_forward for stack in cfg.stack.stacks)
    for node in (dense, sparse.experts, sparse.shared):
        node.set(activation=act)
    return cfg


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    first, rest = cfg.stack.stacks
    attention, mixture = first.layer.attention, rest.layer.feed_forward
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        **written(cfg, _KEYS),
        "num_hidden_layers": first.num_layers + rest.num_layers,
        # After expansion every head has keys of its own; transformers repeats them by the ratio of both counts.
        "num_key_value_heads": attention.num_heads,
        "n_shared_experts": mixture.shared.hidden_dim // mixture.hidden_dim,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "hidden_act": activation_name(first.layer.feed_forward.activation),
        "rope_interleave": attention.positions.interleaved,
        **rope_keys(attention.positions),
        "tie_word_embeddings": isinstance(cfg.head, TiedHead.Config),
    }


FAMILY = ForeignFamily(from_hf, to_hf)

#: Kimi K2 (arXiv:2507.20534, table 2), of this shape: 1,026,408,209,408 parameters, 32B of them active.
kimi_k2 = partial(
    deepseek_v3,
    num_dense_layers=1,
    vocab_size=163_840,
    num_heads=64,
    num_experts=384,
    num_groups=1,
    top_groups=1,
    weight_scale=2.827,
    positions=Rotary.Config(
        theta=50_000.0,
        interleaved=True,
        scaling=YarnScaling.Config(factor=32.0, original_length=4096, mscale=1.0, mscale_all_dim=1.0),
    ),
)
