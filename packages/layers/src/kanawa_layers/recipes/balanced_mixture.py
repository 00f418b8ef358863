"""Decoders of dense layers, then of mixtures balanced by a bias, around any attention: DeepSeek-V3 and its heirs."""

from typing import Any

import jax
from kanawa.contracts import SequenceMixer

from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.feedforward.gated import GatedFeedForward
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.head import TiedHead, UntiedHead
from kanawa_layers.moe.experts import GatedExperts
from kanawa_layers.moe.mixture import MixtureOfExperts
from kanawa_layers.moe.router import BiasBalancing, GroupLimited, Sigmoid, TopKRouter
from kanawa_layers.recipes.hf_config import Foreign, Key, activation, activation_name, arguments, written
from kanawa_layers.stack.chained import ChainedStack
from kanawa_layers.stack.repeated import RepeatedStack
from kanawa_layers.stack.residual_blocks import PreNormBlock

_DENSE, _MIXTURE = "stack.stacks[0].layer", "stack.stacks[1].layer.feed_forward"
_KEYS = (
    Key("first_k_dense_replace", "num_dense_layers", "stack.stacks[0].num_layers"),
    Key("hidden_size", "input_dim", "input_dim"),
    Key("intermediate_size", "hidden_dim", f"{_DENSE}.feed_forward.hidden_dim"),
    Key("vocab_size", "vocab_size", "vocab_size"),
    Key("num_attention_heads", "num_heads", f"{_DENSE}.attention.num_heads"),
    Key("n_routed_experts", "num_experts", f"{_MIXTURE}.num_experts"),
    Key("num_experts_per_tok", "top_k", f"{_MIXTURE}.router.top_k"),
    Key("moe_intermediate_size", "expert_dim", f"{_MIXTURE}.hidden_dim"),
    Key("n_group", "num_groups", f"{_MIXTURE}.router.selection.num_groups"),
    Key("topk_group", "top_groups", f"{_MIXTURE}.router.selection.top_groups"),
    Key("routed_scaling_factor", "weight_scale", f"{_MIXTURE}.router.weight_scale"),
    Key("norm_topk_prob", "normalise_weights", f"{_MIXTURE}.router.normalise_weights"),
    Key("rms_norm_eps", "norm_eps", "norm.eps", 1e-6),
)


def balanced_mixture(
    attention: SequenceMixer.Config,
    *,
    num_layers: int,
    num_dense_layers: int,
    input_dim: int,
    hidden_dim: int,
    vocab_size: int,
    num_experts: int,
    expert_dim: int,
    top_k: int = 8,
    num_shared: int = 1,
    num_groups: int = 1,
    top_groups: int = 1,
    weight_scale: float = 1.0,
    normalise_weights: bool = True,
    norm_eps: float = 1e-6,
    tied: bool = False,
) -> DecoderLM.Config:
    """Returns the decoder: `num_dense_layers` with SwiGLU of `hidden_dim`, the others with experts of `expert_dim`."""
    norm = RMSNorm.Config(eps=norm_eps)
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
        # The bias balances; DeepSeek-V3's small loss (section 4.2) prevents extremes within a sequence.
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


def mixture_arguments(config: Foreign) -> dict[str, Any]:
    """Returns the arguments, and `num_heads`, of a config.json."""
    return {
        **arguments(config, _KEYS),
        "num_layers": config["num_hidden_layers"],
        "num_shared": config["n_shared_experts"],
        "tied": config.get("tie_word_embeddings", False),
    }


def set_activation(cfg: DecoderLM.Config, config: Foreign) -> DecoderLM.Config:
    """Returns the model with a config.json's activation in every feed-forward."""
    stack: Any = cfg.stack
    dense, sparse = (each.layer.feed_forward for each in stack.stacks)
    for node in (dense, sparse.experts, sparse.shared):
        node.set(activation=activation(config.get("hidden_act", "silu")))
    return cfg


def mixture_keys(cfg: Any, architecture: str) -> dict[str, Any]:
    """Returns the keys of a config.json that are not the attention's."""
    first, rest = cfg.stack.stacks
    return {
        "architectures": [architecture],
        **written(cfg, _KEYS),
        "num_hidden_layers": first.num_layers + rest.num_layers,
        "n_shared_experts": rest.layer.feed_forward.shared.hidden_dim // rest.layer.feed_forward.hidden_dim,
        "hidden_act": activation_name(first.layer.feed_forward.activation),
        "tie_word_embeddings": isinstance(cfg.head, TiedHead.Config),
    }
