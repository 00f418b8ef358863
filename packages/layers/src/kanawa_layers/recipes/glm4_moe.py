"""GLM-4.5 (arXiv:2508.06471, table 1): grouped-query attention, half of each head rotated, DeepSeek-V3's mixture."""

from functools import partial
from typing import Any

from kanawa.contracts import ForeignFamily

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.balanced_mixture import balanced_mixture, mixture_arguments, mixture_keys, set_activation
from kanawa_layers.recipes.hf_config import Foreign, rope_keys, rotary


def glm4_moe(
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int | None = 128,
    attention_bias: bool = True,
    qk_norm: bool = False,
    norm_eps: float = 1e-5,
    positions: Rotary.Config | None = None,
    **mixture: Any,
) -> DecoderLM.Config:
    """Returns a GLM-4.5 of any size; `mixture` as for `balanced_mixture`, `qk_norm` as in the largest."""
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
    return balanced_mixture(attention, norm_eps=norm_eps, **mixture)


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `glm4_moe` config.json."""
    # Half of each head, unless the config says otherwise.
    rope = {**config, "partial_rotary_factor": config.get("partial_rotary_factor", 0.5)}
    cfg = glm4_moe(
        **mixture_arguments(config),
        num_kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
        head_dim=config.get("head_dim"),
        attention_bias=config.get("attention_bias", False),
        qk_norm=config.get("use_qk_norm", False),
        positions=rotary(rope),
    )
    return set_activation(cfg, config)


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    attention = cfg.stack.stacks[0].layer.attention
    return {
        **mixture_keys(cfg, "Glm4MoeForCausalLM"),
        "num_key_value_heads": attention.num_kv_heads or attention.num_heads,
        "head_dim": attention.head_dim or cfg.input_dim // attention.num_heads,
        "attention_bias": attention.query.bias,
        "use_qk_norm": attention.query_norm is not None,
        # Written always: absent, it is one half.
        "partial_rotary_factor": attention.positions.fraction,
        **rope_keys(attention.positions),
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
