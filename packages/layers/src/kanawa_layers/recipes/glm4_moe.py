"""GLM-4.5 (arXiv:2508.06471, table 1): grouped-query attention, half of each head rotated, DeepSeek-V3's mixture."""

from functools import partial
from typing import Any

from kanawa.contracts import ForeignFamily

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.head import TiedHead
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes import deepseek_v3 as v3
from kanawa_layers.recipes.hf_config import (
    Foreign,
    Key,
    activation,
    activation_name,
    arguments,
    rope_keys,
    rotary,
    sizes,
    written,
)

_ATTENTION = "stack.stacks[0].layer.attention"
_MIXTURE = "stack.stacks[1].layer.feed_forward"
_KEYS = (
    Key("first_k_dense_replace", "num_dense_layers", "stack.stacks[0].num_layers"),
    Key("n_routed_experts", "num_experts", f"{_MIXTURE}.num_experts"),
    Key("num_experts_per_tok", "top_k", f"{_MIXTURE}.router.top_k"),
    Key("moe_intermediate_size", "expert_dim", f"{_MIXTURE}.hidden_dim"),
    Key("n_group", "num_groups", f"{_MIXTURE}.router.selection.num_groups"),
    Key("topk_group", "top_groups", f"{_MIXTURE}.router.selection.top_groups"),
    Key("routed_scaling_factor", "weight_scale", f"{_MIXTURE}.router.weight_scale"),
    Key("norm_topk_prob", "normalise_weights", f"{_MIXTURE}.router.normalise_weights"),
    Key("attention_bias", "attention_bias", f"{_ATTENTION}.query.bias", False),
)


def glm4_moe(
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int | None = 128,
    attention_bias: bool = True,
    qk_norm: bool = False,
    norm_eps: float = 1e-5,
    positions: Rotary.Config | None = None,
    num_groups: int = 1,
    top_groups: int = 1,
    **shape: Any,
) -> DecoderLM.Config:
    """Returns a GLM-4.5 of any size; `shape` as for `deepseek_v3`, `qk_norm` as in the largest."""
    # Sizes of a latent attention, which is replaced.
    unused: dict[str, Any] = {"query_rank": None, "kv_rank": 1, "nope_dim": 1, "rope_dim": 2, "value_dim": 1}
    cfg = v3.deepseek_v3(
        num_heads=num_heads, norm_eps=norm_eps, num_groups=num_groups, top_groups=top_groups, **unused, **shape
    )
    attention = GroupedQueryAttention.Config(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        positions=positions or Rotary.Config(fraction=0.5, theta=1_000_000.0, trained_length=131_072),
    )
    for name in ("query", "key", "value"):
        attention.set(**{name: Linear.Config(bias=attention_bias)})
    if qk_norm:
        norm = RMSNorm.Config(eps=norm_eps)
        attention.set(query_norm=norm, key_norm=norm)
    for stack in cfg.stack.stacks:
        stack.layer.set(attention=attention)
    return cfg


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `glm4_moe` config.json."""
    act = activation(config.get("hidden_act", "silu"))
    # Half of each head, unless the config says otherwise.
    rope = {**config, "partial_rotary_factor": config.get("partial_rotary_factor", 0.5)}
    cfg = glm4_moe(
        **sizes(config),
        **arguments(config, _KEYS),
        num_shared=config["n_shared_experts"],
        qk_norm=config.get("use_qk_norm", False),
        tied=config.get("tie_word_embeddings", False),
        positions=rotary(rope),
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
        "architectures": ["Glm4MoeForCausalLM"],
        **written(cfg, _KEYS),
        "num_hidden_layers": first.num_layers + rest.num_layers,
        "hidden_size": cfg.input_dim,
        "vocab_size": cfg.vocab_size,
        "intermediate_size": first.layer.feed_forward.hidden_dim,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads or attention.num_heads,
        "head_dim": attention.head_dim or cfg.input_dim // attention.num_heads,
        "use_qk_norm": attention.query_norm is not None,
        "n_shared_experts": mixture.shared.hidden_dim // mixture.hidden_dim,
        "rms_norm_eps": cfg.norm.eps,
        "hidden_act": activation_name(first.layer.feed_forward.activation),
        # Written always: absent, it is one half.
        "partial_rotary_factor": attention.positions.fraction,
        **rope_keys(attention.positions),
        "tie_word_embeddings": isinstance(cfg.head, TiedHead.Config),
    }


FAMILY = ForeignFamily(from_hf, to_hf)

_SIZED: dict[str, Any] = {"vocab_size": 151_552, "num_heads": 96, "num_kv_heads": 8}
#: GLM-4.5: 355B parameters, 32B of them active.
glm45 = partial(
    glm4_moe,
    **_SIZED,
    num_layers=92,
    num_dense_layers=3,
    input_dim=5120,
    hidden_dim=12_288,
    num_experts=160,
    expert_dim=1536,
    weight_scale=2.5,
    qk_norm=True,
)
#: GLM-4.5-Air: 106B parameters, 12B of them active.
glm45_air = partial(
    glm4_moe,
    **_SIZED,
    num_layers=46,
    num_dense_layers=1,
    input_dim=4096,
    hidden_dim=10_944,
    num_experts=128,
    expert_dim=1408,
    weight_scale=1.0,
)
