"""DeepSeek-V3 (arXiv:2412.19437, section 4.2): latent attention, three dense layers, then 256 experts a layer.

The released checkpoint's weights are fp8 and hold a 62nd layer for multi-token prediction; neither converts.
"""

from functools import partial
from typing import Any

from kanawa.contracts import ForeignFamily

from kanawa_layers.attention.latent import LatentAttention
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.positions.frequency_scaling import YarnScaling, yarn_mscale
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.balanced_mixture import balanced_mixture, mixture_arguments, mixture_keys, set_activation
from kanawa_layers.recipes.hf_config import Foreign, Key, arguments, expect, rope_keys, rotary, written

_ATTENTION = "stack.stacks[0].layer.attention"
_KEYS = (
    Key("q_lora_rank", "query_rank", f"{_ATTENTION}.query_rank"),
    Key("kv_lora_rank", "kv_rank", f"{_ATTENTION}.kv_rank"),
    Key("qk_nope_head_dim", "nope_dim", f"{_ATTENTION}.nope_dim"),
    Key("qk_rope_head_dim", "rope_dim", f"{_ATTENTION}.rope_dim"),
    Key("v_head_dim", "value_dim", f"{_ATTENTION}.value_dim"),
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
    expert_dim: int = 2048,
    num_groups: int = 8,
    top_groups: int = 4,
    weight_scale: float = 2.5,
    norm_eps: float = 1e-6,
    positions: Rotary.Config | None = None,
    **mixture: Any,
) -> DecoderLM.Config:
    """Returns DeepSeek-V3, by default as released: 671,026,404,352 parameters and 14,848 balancing biases.

    `mixture` as for `balanced_mixture`.
    """
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
    return balanced_mixture(
        attention,
        num_layers=num_layers,
        num_dense_layers=num_dense_layers,
        input_dim=input_dim,
        hidden_dim=hidden_dim,
        vocab_size=vocab_size,
        num_experts=num_experts,
        expert_dim=expert_dim,
        num_groups=num_groups,
        top_groups=top_groups,
        weight_scale=weight_scale,
        norm_eps=norm_eps,
        **mixture,
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
    positions = rotary(config, interleaved=config.get("rope_interleave", True))
    cfg = deepseek_v3(**mixture_arguments(config), **arguments(config, _KEYS), positions=positions)
    return set_activation(cfg, config)


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    attention = cfg.stack.stacks[0].layer.attention
    return {
        **mixture_keys(cfg, "DeepseekV3ForCausalLM"),
        **written(cfg, _KEYS),
        # After expansion every head has keys of its own; transformers repeats them by the ratio of both counts.
        "num_key_value_heads": attention.num_heads,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "rope_interleave": attention.positions.interleaved,
        **rope_keys(attention.positions),
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
