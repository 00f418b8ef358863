"""RecurrentGemma (arXiv:2404.07839): Griffin, two recurrent layers for each local attention layer."""

from functools import partial
from typing import Any

import kanawa as kn
from kanawa.contracts import ForeignFamily, SequenceMixer

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.basic.embedding import Embedding
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.feedforward.activations import gelu_tanh
from kanawa_layers.feedforward.gated import GatedFeedForward
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.head import TiedHead
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import Foreign, activation, activation_name, expect, period_of, rope_keys, rotary
from kanawa_layers.recurrent.griffin import GriffinRecurrence
from kanawa_layers.stack.pattern import PatternStack
from kanawa_layers.stack.residual_blocks import PreNormBlock

RECURRENT, LOCAL = "recurrent", "attention"

_MODEL = kn.foreign.Names(
    children={"embedding": "model.embed_tokens", "stack": "model", "norm": "model.final_norm", "head": "lm_head"}
)
_BLOCK = kn.foreign.Names(
    children={
        "attention": "temporal_block",
        "feed_forward": "mlp_block",
        "attention_norm": "temporal_pre_norm",
        "feed_forward_norm": "channel_pre_norm",
    }
)


def recurrent_gemma(
    *,
    num_layers: int,
    input_dim: int,
    num_heads: int,
    hidden_dim: int,
    num_kv_heads: int = 1,
    recurrent_width: int | None = None,
    conv_width: int = 4,
    window: int = 2048,
    kinds: tuple[str, ...] = (RECURRENT, RECURRENT, LOCAL),
    vocab_size: int = 256_000,
    logit_cap: float | None = 30.0,
    norm_eps: float = 1e-6,
    positions: Rotary.Config | None = None,
) -> DecoderLM.Config:
    """Returns a RecurrentGemma of any size: zero-centred norms, scaled embeddings, biases, GeGLU, half-rotary heads."""
    norm = RMSNorm.Config(eps=norm_eps, zero_centered=True)
    biased = Linear.Config(bias=True)
    recurrent = GriffinRecurrence.Config(num_heads=num_heads, width=recurrent_width, activation=gelu_tanh)
    recurrent.conv.set(width=conv_width)
    mixers: dict[str, SequenceMixer.Config] = {
        RECURRENT: recurrent,
        LOCAL: GroupedQueryAttention.Config(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            window=window,
            output=biased,
            positions=positions or Rotary.Config(fraction=0.5, trained_length=8192),
        ),
    }
    feed_forward = GatedFeedForward.Config(
        hidden_dim=hidden_dim, activation=gelu_tanh, gate=biased, up=biased, down=biased
    )
    pattern = tuple(
        PreNormBlock.Config(
            attention=mixers[kind],
            feed_forward=feed_forward,
            attention_norm=norm,
            feed_forward_norm=norm,
            foreign=_BLOCK,
        )
        for kind in kinds
    )
    cfg = DecoderLM.Config(
        vocab_size=vocab_size,
        input_dim=input_dim,
        embedding=Embedding.Config(scale_by_sqrt_dim=True),
        stack=PatternStack.Config(num_layers=num_layers, pattern=pattern),
        norm=norm,
        head=TiedHead.Config(),
        foreign=_MODEL,
    )
    cfg.head.set(logit_cap=logit_cap)
    return cfg


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `recurrent_gemma` config.json."""
    # attention_bias is for queries, keys and values; the output always has a bias.
    expect(config, attention_bias=False, tie_word_embeddings=True)
    width = config.get("lru_width")
    cfg = recurrent_gemma(
        num_layers=config["num_hidden_layers"],
        input_dim=config["hidden_size"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
        # Its intermediate_size counts gate and up together.
        hidden_dim=config["intermediate_size"] // 2,
        recurrent_width=None if width == config["hidden_size"] else width,
        conv_width=config.get("conv1d_width", 4),
        window=config.get("attention_window_size", 2048),
        kinds=period_of(config.get("block_types") or (RECURRENT, RECURRENT, LOCAL)),
        vocab_size=config["vocab_size"],
        logit_cap=config.get("logits_soft_cap", 30.0),
        norm_eps=config.get("rms_norm_eps", 1e-6),
        positions=rotary({"partial_rotary_factor": 0.5, **config}),
    )
    for block in cfg.stack.pattern:
        block.feed_forward.set(activation=activation(config.get("hidden_activation", "gelu_pytorch_tanh")))
    return cfg


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    mixers = [block.attention for block in cfg.stack.pattern]
    kinds = [RECURRENT if isinstance(mixer, GriffinRecurrence.Config) else LOCAL for mixer in mixers]
    recurrent, local = mixers[kinds.index(RECURRENT)], mixers[kinds.index(LOCAL)]
    feed_forward = cfg.stack.pattern[0].feed_forward
    return {
        "architectures": ["RecurrentGemmaForCausalLM"],
        "num_hidden_layers": cfg.stack.num_layers,
        "hidden_size": cfg.input_dim,
        "num_attention_heads": local.num_heads,
        "num_key_value_heads": local.num_kv_heads or local.num_heads,
        "intermediate_size": 2 * feed_forward.hidden_dim,
        "lru_width": recurrent.width or cfg.input_dim,
        "conv1d_width": recurrent.conv.width,
        "attention_window_size": local.window,
        "block_types": kinds,
        "vocab_size": cfg.vocab_size,
        "logits_soft_cap": cfg.head.logit_cap,
        "rms_norm_eps": cfg.norm.eps,
        "hidden_activation": activation_name(feed_forward.activation, "gelu_pytorch_tanh"),
        "tie_word_embeddings": True,
        **rope_keys(local.positions),
    }


FAMILY = ForeignFamily(from_hf, to_hf)

#: RecurrentGemma 2B: 2,682,862,080 parameters.
recurrent_gemma_2b = partial(recurrent_gemma, num_layers=26, input_dim=2560, num_heads=10, hidden_dim=7680)
#: RecurrentGemma 9B: 8,579,977,216 parameters.
recurrent_gemma_9b = partial(recurrent_gemma, num_layers=38, input_dim=4096, num_heads=16, hidden_dim=12_288)
