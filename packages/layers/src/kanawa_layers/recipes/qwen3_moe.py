"""Qwen3 mixtures (arXiv:2505.09388, table 1): Qwen3 with 128 experts a layer, eight a token."""

from typing import Any

from kanawa.contracts import FeedForward, ForeignConfigError, ForeignFamily

from kanawa_layers.feedforward.gated import GatedFeedForward
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.head import TiedHead
from kanawa_layers.moe.experts import GatedExperts
from kanawa_layers.moe.mixture import MixtureOfExperts
from kanawa_layers.moe.router import TopKRouter
from kanawa_layers.recipes.hf_config import (
    Foreign,
    activation,
    activation_name,
    expect,
    period_of,
    rope_keys,
    rotary,
    size_keys,
    sizes,
)
from kanawa_layers.recipes.llama import sized
from kanawa_layers.recipes.qwen3 import qwen3
from kanawa_layers.stack.pattern import PatternStack


def qwen3_moe(
    *,
    expert_dim: int,
    num_experts: int = 128,
    top_k: int = 8,
    normalise_weights: bool = True,
    sparse: tuple[bool, ...] = (True,),
    **shape: Any,
) -> DecoderLM.Config:
    """Returns a Qwen3 mixture of any size; `shape` as for `qwen3`, `sparse` the pattern of mixtures among layers."""
    cfg = qwen3(**shape)
    dense = cfg.stack.layer
    mixture = dense.clone(
        feed_forward=MixtureOfExperts.Config(
            hidden_dim=expert_dim,
            num_experts=num_experts,
            router=TopKRouter.Config(top_k=top_k, normalise_weights=normalise_weights),
            experts=GatedExperts.Config(),
        )
    )
    if sparse == (True,):
        cfg.stack.set(layer=mixture)
    else:
        pattern = tuple(mixture if kind else dense for kind in sparse)
        cfg.set(stack=PatternStack.Config(num_layers=cfg.stack.num_layers, pattern=pattern))
    return cfg


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `qwen3_moe` config.json."""
    expect(config, use_sliding_window=False, attention_bias=False)
    plain, step = config.get("mlp_only_layers") or (), config.get("decoder_sparse_step", 1)
    sparse = [i not in plain and (i + 1) % step == 0 for i in range(config["num_hidden_layers"])]
    cfg = qwen3_moe(
        **sizes(config),
        tied=config.get("tie_word_embeddings", False),
        positions=rotary(config),
        expert_dim=config["moe_intermediate_size"],
        num_experts=config["num_experts"] if "num_experts" in config else config["num_local_experts"],
        top_k=config["num_experts_per_tok"],
        # False is transformers' default for an absent key; the released configs say true.
        normalise_weights=config.get("norm_topk_prob", False),
        sparse=period_of(sparse),
    )
    for feed_forward in _feed_forwards(cfg):
        experts = getattr(feed_forward, "experts", feed_forward) if _is_sparse(feed_forward) else feed_forward
        experts.set(activation=activation(config.get("hidden_act", "silu")))
    return cfg


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    blocks = _blocks(cfg)
    mixtures = [block.feed_forward for block in blocks if _is_sparse(block.feed_forward)]
    dense = [block.feed_forward.hidden_dim for block in blocks if not _is_sparse(block.feed_forward)]
    if not mixtures:
        message = "the model has no mixture of experts"
        raise ForeignConfigError(message)
    mixture = mixtures[0]
    attention, period = blocks[0].attention, len(blocks)
    plain = [i for i in range(cfg.stack.num_layers) if not _is_sparse(blocks[i % period].feed_forward)]
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        **size_keys(cfg, attention, dense[0] if dense else mixture.hidden_dim),
        **rope_keys(attention.positions),
        "hidden_act": activation_name(mixture.experts.activation),
        "tie_word_embeddings": isinstance(cfg.head, TiedHead.Config),
        "moe_intermediate_size": mixture.hidden_dim,
        "num_experts": mixture.num_experts,
        "num_experts_per_tok": mixture.router.top_k,
        "norm_topk_prob": mixture.router.normalise_weights,
        "mlp_only_layers": plain,
        # The problem above already names every dense layer.
        "decoder_sparse_step": 1,
    }


def _blocks(cfg: Any) -> tuple[Any, ...]:
    return tuple(cfg.stack.pattern) if isinstance(cfg.stack, PatternStack.Config) else (cfg.stack.layer,)


def _feed_forwards(cfg: Any) -> list[FeedForward.Config]:
    return [block.feed_forward for block in _blocks(cfg)]


def _is_sparse(feed_forward: FeedForward.Config) -> bool:
    return not isinstance(feed_forward, GatedFeedForward.Config)


FAMILY = ForeignFamily(from_hf, to_hf)

#: Qwen3 30B-A3B: 30,532,122,624 parameters, 3.3B of them active.
qwen3_30b_a3b = sized(qwen3_moe, 48, 2048, 32, 4, 6144, head_dim=128, expert_dim=768)
#: Qwen3 235B-A22B: 235,093,634,560 parameters, 22B of them active.
qwen3_235b_a22b = sized(qwen3_moe, 94, 4096, 64, 4, 12_288, head_dim=128, expert_dim=1536)
