"""MiniMax-M2 (MiniMax 2025, the released config): 256 experts balanced by a bias, half of each head rotated."""

from typing import Any

import kanawa as kn
from kanawa.contracts import ForeignFamily

from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.head import TiedHead
from kanawa_layers.moe.router import BiasBalancing, Sigmoid
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import Foreign, activation_name, rope_keys, rotary, size_keys
from kanawa_layers.recipes.llama import llama_from, sized
from kanawa_layers.recipes.mixtral import mixtral


def minimax_m2(
    *,
    num_experts: int = 256,
    top_k: int = 8,
    vocab_size: int = 200_064,
    norm_eps: float = 1e-6,
    head_dim: int | None = 128,
    **shape: Any,
) -> DecoderLM.Config:
    """Returns a MiniMax-M2 of any size; `shape` as for `mixtral`. Norms span all heads of queries and of keys."""
    shape.setdefault("positions", Rotary.Config(theta=5_000_000.0, fraction=0.5, trained_length=196_608))
    sizes: dict[str, Any] = {"num_experts": num_experts, "top_k": top_k, "vocab_size": vocab_size, "head_dim": head_dim}
    cfg = mixtral(norm_eps=norm_eps, **sizes, **shape)
    norm = RMSNorm.Config(eps=norm_eps)
    cfg.stack.layer.attention.set(query_norm=norm, key_norm=norm, norm_all_heads=True)
    mixture = cfg.stack.layer.feed_forward
    mixture.router.set(scoring=Sigmoid.Config(), balancing=BiasBalancing.Config(), balance_loss=0.001, z_loss=0.0)
    # The bias is the mixture's in their files, not the router's.
    mixture.foreign.children["router"] = ""
    weight = mixture.router.foreign.tensors["weight"]
    mixture.router.foreign.tensors["weight"] = kn.foreign.Tensor(name="gate.weight", form=weight.form)
    return cfg


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `minimax_m2` config.json."""
    turned = {}
    if "rotary_dim" in config:
        turned = {"partial_rotary_factor": config["rotary_dim"] / config["head_dim"]}
    cfg = llama_from(config, minimax_m2, num_experts=config["num_local_experts"], top_k=config["num_experts_per_tok"])
    cfg.stack.layer.attention.set(positions=rotary({**turned, **config}))
    return cfg


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    attention, mixture = cfg.stack.layer.attention, cfg.stack.layer.feed_forward
    return {
        "architectures": ["MiniMaxM2ForCausalLM"],
        **size_keys(cfg, attention, mixture.hidden_dim),
        **rope_keys(attention.positions),
        "hidden_act": activation_name(mixture.experts.activation),
        "tie_word_embeddings": isinstance(cfg.head, TiedHead.Config),
        "num_local_experts": mixture.num_experts,
        "num_experts_per_tok": mixture.router.top_k,
    }


FAMILY = ForeignFamily(from_hf, to_hf)

#: MiniMax-M2: 228,689,748,992 parameters, 10B of them active.
minimax_m2_230b = sized(minimax_m2, 62, 3072, 48, 8, 1536)
