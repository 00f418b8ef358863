"""Llama 2 (Touvron et al. 2023, arXiv:2307.09288, table 1 and the released configs) and a tiny model of its kind."""

import jax

from sashimono_layers.attention.grouped_query import GroupedQueryAttention
from sashimono_layers.basic.rms_norm import RMSNorm
from sashimono_layers.feedforward.gated import GatedFeedForward
from sashimono_layers.models.decoder import DecoderLM
from sashimono_layers.models.head import TiedHead, UntiedHead
from sashimono_layers.stack.pre_norm import PreNormBlock
from sashimono_layers.stack.repeated import RepeatedStack


def llama(
    *,
    num_layers: int,
    input_dim: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    vocab_size: int = 32_000,
    tied: bool = False,
    norm_eps: float = 1e-5,
) -> DecoderLM.Config:
    """Returns a Llama of any size: pre-norm, RMSNorm, rotary GQA, SwiGLU, no biases."""
    norm = RMSNorm.Config(eps=norm_eps)
    layer = PreNormBlock.Config(
        attention=GroupedQueryAttention.Config(num_heads=num_heads, num_kv_heads=num_kv_heads),
        feed_forward=GatedFeedForward.Config(hidden_dim=hidden_dim, activation=jax.nn.silu),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    return DecoderLM.Config(
        vocab_size=vocab_size,
        input_dim=input_dim,
        stack=RepeatedStack.Config(num_layers=num_layers, layer=layer),
        norm=norm,
        head=TiedHead.Config() if tied else UntiedHead.Config(),
    )


def llama2_7b() -> DecoderLM.Config:
    """Returns Llama 2 7B: 6,738,415,616 parameters."""
    return llama(num_layers=32, input_dim=4096, num_heads=32, num_kv_heads=32, hidden_dim=11_008)


def llama2_13b() -> DecoderLM.Config:
    """Returns Llama 2 13B: 13,015,864,320 parameters."""
    return llama(num_layers=40, input_dim=5120, num_heads=40, num_kv_heads=40, hidden_dim=13_824)


def llama2_70b() -> DecoderLM.Config:
    """Returns Llama 2 70B: 68,976,648,192 parameters."""
    return llama(num_layers=80, input_dim=8192, num_heads=64, num_kv_heads=8, hidden_dim=28_672)


def llama_1b() -> DecoderLM.Config:
    """Returns a Llama shape of 1.1B parameters, for one accelerator."""
    return llama(num_layers=22, input_dim=2048, num_heads=32, num_kv_heads=4, hidden_dim=5632)


def llama_tiny() -> DecoderLM.Config:
    """Returns a Llama that learns on a laptop: 4 layers of width 192, tied, byte-pair vocabulary of 2,048.

    A table drawn at width ** -0.5 gives the tied head logits of size 1 from the start, which saves a third of the
    steps that the usual 0.02 spends before it learns more than token frequencies.
    """
    cfg = llama(
        num_layers=4,
        input_dim=192,
        num_heads=6,
        num_kv_heads=2,
        hidden_dim=512,
        vocab_size=2048,
        tied=True,
    )
    cfg.embedding.set(init_stddev=192**-0.5)
    return cfg
