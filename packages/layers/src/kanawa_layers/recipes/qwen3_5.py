"""Qwen3.5's text models, dense and mixtures: Qwen3-Next with other names of projections and a larger vocabulary."""

from functools import partial
from typing import Any

from kanawa.contracts import ForeignFamily

from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.recipes.hf_config import Foreign, activation_name
from kanawa_layers.recipes.qwen3_next import hybrid_from, hybrid_keys, mixture_keys, qwen3_next


def from_dense(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `qwen3_5_text` config.json."""
    return hybrid_from(config, sparse=(False,), separate=True)


def dense_to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_dense`."""
    feed_forward = cfg.stack.pattern[0].feed_forward
    return {
        **hybrid_keys(cfg, "Qwen3_5ForCausalLM"),
        "intermediate_size": feed_forward.hidden_dim,
        "hidden_act": activation_name(feed_forward.activation),
    }


def from_mixture(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `qwen3_5_moe_text` config.json."""
    return hybrid_from(config, separate=True)


def mixture_to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_mixture`."""
    return {
        **hybrid_keys(cfg, "Qwen3_5MoeForCausalLM"),
        **mixture_keys(cfg.stack.pattern[0].feed_forward),
    }


DENSE = ForeignFamily(from_dense, dense_to_hf)
MIXTURE = ForeignFamily(from_mixture, mixture_to_hf)

_SHAPE: dict[str, Any] = {"vocab_size": 248_320, "num_heads": 16, "separate": True}
#: Qwen3.5 9B, by the default sizes in `transformers`: 8,953,803,264 parameters.
qwen35_9b = partial(
    qwen3_next,
    **_SHAPE,
    num_layers=32,
    input_dim=4096,
    num_kv_heads=4,
    head_dim=None,
    hidden_dim=12_288,
    sparse=(False,),
)
#: Qwen3.5 35B-A3B: 34,660,610,688 parameters, 3B of them active.
qwen35_35b_a3b = partial(qwen3_next, **_SHAPE, num_layers=40, input_dim=2048, num_kv_heads=2, num_experts=256, top_k=8)
