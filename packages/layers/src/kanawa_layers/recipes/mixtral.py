"""Mixtral 8x7B and 8x22B (arXiv:2401.04088): Mistral with eight experts a layer, two a token."""

from typing import Any

import kanawa as kn
from kanawa.contracts import ForeignFamily

from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.head import TiedHead
from kanawa_layers.moe.experts import GatedExperts
from kanawa_layers.moe.mixture import MixtureOfExperts
from kanawa_layers.moe.router import TopKRouter
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import Foreign, activation_name, rope_keys, size_keys
from kanawa_layers.recipes.llama import llama_from
from kanawa_layers.recipes.mistral import mistral

#: The release has the names of Mistral's own code: w1 is the gate, w3 up, w2 down.
_EXPERTS = kn.foreign.Names(
    tensors={
        name: kn.foreign.Tensor(name=f"{{}}.{foreign}.weight", form=kn.foreign.Matrix.Config())
        for name, foreign in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
    }
)


def mixtral(*, hidden_dim: int, num_experts: int = 8, top_k: int = 2, **shape: Any) -> DecoderLM.Config:
    """Returns a Mixtral of any size; `shape` as for `mistral`."""
    cfg = mistral(hidden_dim=hidden_dim, **shape)
    mixture = MixtureOfExperts.Config(
        hidden_dim=hidden_dim,
        num_experts=num_experts,
        router=TopKRouter.Config(top_k=top_k),
        experts=GatedExperts.Config(foreign=_EXPERTS),
    )
    cfg.stack.layer.set(feed_forward=mixture)
    cfg.stack.layer.foreign.children["feed_forward"] = "block_sparse_moe"
    return cfg


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `mixtral` config.json."""
    return llama_from(
        config,
        mixtral,
        window=config.get("sliding_window"),
        num_experts=config["num_local_experts"],
        top_k=config["num_experts_per_tok"],
    )


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    layer = cfg.stack.layer
    mixture = layer.feed_forward
    return {
        "architectures": ["MixtralForCausalLM"],
        **size_keys(cfg, layer.attention, mixture.hidden_dim),
        **rope_keys(layer.attention.positions),
        "hidden_act": activation_name(mixture.experts.activation),
        "tie_word_embeddings": isinstance(cfg.head, TiedHead.Config),
        "sliding_window": layer.attention.window,
        "num_local_experts": mixture.num_experts,
        "num_experts_per_tok": mixture.router.top_k,
    }


FAMILY = ForeignFamily(from_hf, to_hf)


def mixtral_8x7b() -> DecoderLM.Config:
    """Returns Mixtral 8x7B: 46,702,792,704 parameters."""
    return mixtral(
        num_layers=32,
        input_dim=4096,
        num_heads=32,
        num_kv_heads=8,
        hidden_dim=14_336,
        positions=Rotary.Config(theta=1_000_000.0, trained_length=32_768),
    )


def mixtral_8x22b() -> DecoderLM.Config:
    """Returns Mixtral 8x22B: 140,630,071,296 parameters."""
    return mixtral(
        num_layers=56,
        input_dim=6144,
        num_heads=48,
        num_kv_heads=8,
        hidden_dim=16_384,
        vocab_size=32_768,
        positions=Rotary.Config(theta=1_000_000.0, trained_length=65_536),
    )
