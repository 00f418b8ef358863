"""Qwen3-Next (Qwen team, 2025): three gated delta nets, then gated attention; 512 experts and a shared one."""

from typing import Any

import jax
import kanawa as kn
from kanawa.contracts import Block, FeedForward, ForeignFamily, SequenceMixer

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.attention.slots import ElementwiseGate
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.feedforward.gated import GatedFeedForward
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.head import TiedHead, UntiedHead
from kanawa_layers.moe.experts import GatedExperts
from kanawa_layers.moe.mixture import MixtureOfExperts
from kanawa_layers.moe.router import TopKRouter
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import (
    FULL,
    Foreign,
    activation,
    activation_name,
    expect,
    period_of,
    repeated,
    rope_keys,
    rotary,
    sizes,
)
from kanawa_layers.recipes.llama import sized
from kanawa_layers.recurrent.gated_delta_net import GatedDeltaNet
from kanawa_layers.stack.pattern import PatternStack
from kanawa_layers.stack.residual_blocks import PreNormBlock

LINEAR = "linear_attention"
_USUAL = (LINEAR, LINEAR, LINEAR, FULL)


def qwen3_next(
    *,
    num_layers: int,
    input_dim: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int | None = 256,
    hidden_dim: int = 5120,
    vocab_size: int = 151_936,
    kinds: tuple[str, ...] = _USUAL,
    sparse: tuple[bool, ...] = (True,),
    linear_heads: int = 32,
    linear_key_heads: int = 16,
    linear_head_dim: int = 128,
    linear_value_dim: int = 128,
    conv_width: int = 4,
    separate: bool = False,
    norm_eps: float = 1e-6,
    tied: bool = False,
    positions: Rotary.Config | None = None,
    **mixture: Any,
) -> DecoderLM.Config:
    """Returns a Qwen3-Next of any size; layer i is of `kinds[i % len(kinds)]`, and a mixture where `sparse` says so.

    `separate` names the linear layers' projections as Qwen3.5 does; `mixture` as for `gated_shared_mixture`. All norms
    but the linear layers' are zero-centred.
    """
    norm = RMSNorm.Config(eps=norm_eps, zero_centered=True)
    delta = GatedDeltaNet.Config(
        num_heads=linear_heads,
        num_key_heads=linear_key_heads,
        head_dim=linear_head_dim,
        value_dim=linear_value_dim,
        norm=RMSNorm.Config(eps=norm_eps),
        foreign=_linear_names(linear_key_heads, separate),
    )
    for name in ("query_conv", "key_conv", "value_conv"):
        getattr(delta, name).set(width=conv_width)
    mixers: dict[str, SequenceMixer.Config] = {
        LINEAR: delta,
        FULL: gated_attention(num_heads, num_kv_heads, head_dim, norm, positions),
    }
    feed_forwards: dict[bool, FeedForward.Config] = {
        True: gated_shared_mixture(**mixture),
        False: GatedFeedForward.Config(hidden_dim=hidden_dim, activation=jax.nn.silu),
    }

    def block(kind: str, is_sparse: bool) -> Block.Config:
        layer = PreNormBlock.Config(
            attention=mixers[kind], feed_forward=feed_forwards[is_sparse], attention_norm=norm, feed_forward_norm=norm
        )
        if kind == LINEAR:
            layer.foreign.set(children={**layer.foreign.children, "attention": "linear_attn"})
        return layer

    layers = zip(repeated(kinds, num_layers), repeated(sparse, num_layers), strict=True)
    pattern = tuple(block(*layer) for layer in period_of(tuple(layers)))
    return DecoderLM.Config(
        vocab_size=vocab_size,
        input_dim=input_dim,
        stack=PatternStack.Config(num_layers=num_layers, pattern=pattern),
        norm=norm,
        head=TiedHead.Config() if tied else UntiedHead.Config(),
    )


def gated_shared_mixture(
    *,
    expert_dim: int = 512,
    num_experts: int = 512,
    top_k: int = 10,
    shared_dim: int = 512,
    normalise_weights: bool = True,
) -> MixtureOfExperts.Config:
    """Returns a mixture with a shared expert of width `shared_dim`, which a gate weighs."""
    mixture = MixtureOfExperts.Config(
        hidden_dim=expert_dim,
        num_experts=num_experts,
        router=TopKRouter.Config(top_k=top_k, normalise_weights=normalise_weights),
        experts=GatedExperts.Config(activation=jax.nn.silu),
        shared=GatedFeedForward.Config(hidden_dim=shared_dim, activation=jax.nn.silu),
        shared_gate=Linear.Config(),
    )
    mixture.foreign.set(children={**mixture.foreign.children, "shared": "shared_expert"})
    return mixture


def gated_attention(
    num_heads: int, num_kv_heads: int, head_dim: int | None, norm: RMSNorm.Config, positions: Rotary.Config | None
) -> GroupedQueryAttention.Config:
    """Returns attention whose output has a gate for each element; a quarter of each head is rotated."""
    attention = GroupedQueryAttention.Config(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        query_norm=norm,
        key_norm=norm,
        gate=ElementwiseGate.Config(),
        positions=positions or Rotary.Config(fraction=0.25, theta=10_000_000.0, trained_length=262_144),
    )
    # Each head's query lies before its gate.
    attention.foreign.set(joined=(kn.foreign.Joined(name="q_proj", parts=("query", "gate"), blocks=num_heads),))
    return attention


def _linear_names(key_heads: int, separate: bool) -> kn.foreign.Names:
    """Returns the names of a linear layer's parts; unless `separate`, projections join by key head."""
    children = {"norm": "norm", "output": "out_proj"}
    joined = [kn.foreign.Joined(name="conv1d", parts=("query_conv", "key_conv", "value_conv"))]
    if separate:
        children |= {"write": "in_proj_b", "decay": "in_proj_a", "output_gate": "in_proj_z"}
        joined.append(kn.foreign.Joined(name="in_proj_qkv", parts=("query", "key", "value")))
    else:
        for name, parts in {"qkvz": ("query", "key", "value", "output_gate"), "ba": ("write", "decay")}.items():
            joined.append(kn.foreign.Joined(name=f"in_proj_{name}", parts=parts, blocks=key_heads))
    tensors: dict[str, Any] = {"log_rate": "A_log", "step_bias": "dt_bias"}
    return kn.foreign.Names(tensors=tensors, children=children, joined=tuple(joined))


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `qwen3_next` config.json."""
    plain, step = config.get("mlp_only_layers") or (), config.get("decoder_sparse_step", 1)
    sparse = [i not in plain and (i + 1) % step == 0 for i in range(config["num_hidden_layers"])]
    return hybrid_from(config, sparse=period_of(sparse), normalise_weights=config.get("norm_topk_prob", True))


def hybrid_from(config: Foreign, **fields: Any) -> DecoderLM.Config:
    """Returns the model of a config.json of Qwen3-Next's shape; `fields` are further arguments of the recipe."""
    expect(config, attention_bias=False)
    interval = config.get("full_attention_interval", 4)
    kinds = config.get("layer_types") or [LINEAR] * (interval - 1) + [FULL]
    # Newer configs hold the fraction among the rotary parameters, which win.
    rope = {**config, "partial_rotary_factor": config.get("partial_rotary_factor", 0.25)}
    # Of dense layers, which a mixture of Qwen3.5 doesn't have.
    usual = {"intermediate_size": config.get("moe_intermediate_size"), **config}
    if "num_experts" in config:
        fields |= {
            "expert_dim": config["moe_intermediate_size"],
            "num_experts": config["num_experts"],
            "top_k": config["num_experts_per_tok"],
            "shared_dim": config["shared_expert_intermediate_size"],
        }
    cfg = qwen3_next(
        **sizes(usual),
        kinds=period_of(tuple(kinds)),
        linear_heads=config["linear_num_value_heads"],
        linear_key_heads=config["linear_num_key_heads"],
        linear_head_dim=config["linear_key_head_dim"],
        linear_value_dim=config["linear_value_head_dim"],
        conv_width=config["linear_conv_kernel_dim"],
        tied=config.get("tie_word_embeddings", False),
        positions=rotary(rope),
        **fields,
    )
    for _, node in cfg.walk():
        if (
            isinstance(node, FeedForward.Config)
            and "activation" in node.fields()
            or isinstance(node, GatedExperts.Config)
        ):
            node.set(activation=activation(config.get("hidden_act", "silu")))
    return cfg


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    blocks = repeated(cfg.stack.pattern, cfg.stack.num_layers)
    dense = [i for i, block in enumerate(blocks) if isinstance(block.feed_forward, GatedFeedForward.Config)]
    mixture = next(block.feed_forward for i, block in enumerate(blocks) if i not in dense)
    return {
        **hybrid_keys(cfg, "Qwen3NextForCausalLM"),
        **mixture_keys(mixture),
        # It is used by dense layers only.
        "intermediate_size": blocks[dense[0]].feed_forward.hidden_dim if dense else mixture.hidden_dim,
        "norm_topk_prob": mixture.router.normalise_weights,
        "mlp_only_layers": dense,
        "decoder_sparse_step": 1,
    }


def mixture_keys(mixture: Any) -> dict[str, Any]:
    """Returns the keys of a mixture with a gated shared expert."""
    return {
        "moe_intermediate_size": mixture.hidden_dim,
        "num_experts": mixture.num_experts,
        "num_experts_per_tok": mixture.router.top_k,
        "shared_expert_intermediate_size": mixture.shared.hidden_dim,
        "hidden_act": activation_name(mixture.shared.activation),
    }


def hybrid_keys(cfg: Any, architecture: str) -> dict[str, Any]:
    """Returns the keys that every model of Qwen3-Next's shape writes: those of its attention, of both kinds."""
    mixers = [block.attention for block in repeated(cfg.stack.pattern, cfg.stack.num_layers)]
    kinds = [LINEAR if isinstance(mixer, GatedDeltaNet.Config) else FULL for mixer in mixers]
    linear, full = (mixers[kinds.index(kind)] for kind in (LINEAR, FULL))
    return {
        "architectures": [architecture],
        "num_hidden_layers": cfg.stack.num_layers,
        "hidden_size": cfg.input_dim,
        "vocab_size": cfg.vocab_size,
        "rms_norm_eps": cfg.norm.eps,
        "tie_word_embeddings": isinstance(cfg.head, TiedHead.Config),
        "layer_types": kinds,
        "num_attention_heads": full.num_heads,
        "num_key_value_heads": full.num_kv_heads or full.num_heads,
        "head_dim": full.head_dim or cfg.input_dim // full.num_heads,
        # Written always: absent, it is a quarter.
        "partial_rotary_factor": full.positions.fraction,
        **rope_keys(full.positions),
        "linear_num_value_heads": linear.num_heads,
        "linear_num_key_heads": linear.num_key_heads or linear.num_heads,
        "linear_key_head_dim": linear.head_dim,
        "linear_value_head_dim": linear.value_dim,
        "linear_conv_kernel_dim": linear.query_conv.width,
    }


FAMILY = ForeignFamily(from_hf, to_hf)

#: Qwen3-Next 80B-A3B: 79,674,391,296 parameters, 3B of them active.
qwen3_next_80b_a3b = sized(qwen3_next, 48, 2048, 16, 2, 5120)
