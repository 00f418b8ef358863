"""Llama 1 (arXiv:2302.13971), 2 (arXiv:2307.09288), 3 to 3.2 (arXiv:2407.21783): tables and released configs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from kanawa.contracts import ForeignFamily

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.feedforward.gated import GatedFeedForward
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.head import TiedHead, UntiedHead
from kanawa_layers.positions.frequency_scaling import Llama3Scaling
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import Foreign, activation, activation_name, rope_keys, rotary, size_keys, sizes
from kanawa_layers.stack.repeated import RepeatedStack
from kanawa_layers.stack.residual_blocks import PreNormBlock


def llama(
    *,
    num_layers: int,
    input_dim: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    vocab_size: int = 32_000,
    head_dim: int | None = None,
    tied: bool = False,
    norm_eps: float = 1e-5,
    positions: Rotary.Config | None = None,
    trained_length: int | None = None,
) -> DecoderLM.Config:
    """Returns a Llama of any size: pre-norm, RMSNorm, rotary GQA, SwiGLU, no biases.

    `trained_length`, of the sequences it was trained on, is ignored where `positions` are set.
    """
    norm = RMSNorm.Config(eps=norm_eps)
    attention = GroupedQueryAttention.Config(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    if positions is not None:
        attention.set(positions=positions)
    if trained_length is not None:
        attention.positions.set(trained_length=trained_length)
    layer = PreNormBlock.Config(
        attention=attention,
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


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `llama` config.json."""
    cfg = llama_from(config, llama)
    layer = cfg.stack.layer
    for name in ("query", "key", "value", "output"):
        getattr(layer.attention, name).set(bias=config.get("attention_bias", False))
    for name in ("gate", "up", "down"):
        getattr(layer.feed_forward, name).set(bias=config.get("mlp_bias", False))
    return cfg


def llama_from(config: Foreign, recipe: Callable[..., DecoderLM.Config], **fields: Any) -> DecoderLM.Config:
    """Returns the model of a config.json of Llama's shape, built by a family's recipe with extra arguments."""
    tied = config.get("tie_word_embeddings", False)
    cfg = recipe(**sizes(config), tied=tied, positions=rotary(config), **fields)
    feed_forward: Any = cfg.stack.layer.feed_forward
    experts = feed_forward.experts if "experts" in feed_forward.fields() else feed_forward
    experts.set(activation=activation(config.get("hidden_act", "silu")))
    return cfg


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    layer = cfg.stack.layer
    return {
        **llama_keys(cfg, "LlamaForCausalLM"),
        "attention_bias": layer.attention.output.bias,
        "mlp_bias": layer.feed_forward.down.bias,
    }


def llama_keys(cfg: Any, architecture: str) -> dict[str, Any]:
    """Returns the keys that every family of Llama's shape writes."""
    layer = cfg.stack.layer
    return {
        "architectures": [architecture],
        **size_keys(cfg, layer.attention, layer.feed_forward.hidden_dim),
        **rope_keys(layer.attention.positions),
        "hidden_act": activation_name(layer.feed_forward.activation),
        "tie_word_embeddings": isinstance(cfg.head, TiedHead.Config),
    }


FAMILY = ForeignFamily(from_hf, to_hf)


def sized(
    recipe: Callable[..., DecoderLM.Config],
    num_layers: int,
    input_dim: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    **rest: Any,
) -> partial[DecoderLM.Config]:
    """Returns a recipe of these sizes, which takes no further arguments."""
    sizes = {"num_layers": num_layers, "input_dim": input_dim, "num_heads": num_heads, "num_kv_heads": num_kv_heads}
    return partial(recipe, **sizes, hidden_dim=hidden_dim, **rest)


#: Llama 7B: 6,738,415,616 parameters.
llama_7b = sized(llama, 32, 4096, 32, 32, 11_008, norm_eps=1e-6, trained_length=2048)
#: Llama 13B: 13,015,864,320 parameters.
llama_13b = sized(llama, 40, 5120, 40, 40, 13_824, norm_eps=1e-6, trained_length=2048)
#: Llama 30B, 33B in the paper: 32,528,943,616 parameters.
llama_30b = sized(llama, 60, 6656, 52, 52, 17_920, norm_eps=1e-6, trained_length=2048)
# Not a mistake: of the first Llamas only 65B was released with this eps.
#: Llama 65B: 65,285,660,672 parameters.
llama_65b = sized(llama, 80, 8192, 64, 64, 22_016, trained_length=2048)
#: Llama 2 7B: 6,738,415,616 parameters.
llama2_7b = sized(llama, 32, 4096, 32, 32, 11_008, trained_length=4096)
#: Llama 2 13B: 13,015,864,320 parameters.
llama2_13b = sized(llama, 40, 5120, 40, 40, 13_824, trained_length=4096)
#: Llama 2 70B: 68,976,648,192 parameters.
llama2_70b = sized(llama, 80, 8192, 64, 8, 28_672, trained_length=4096)


def llama3(*, factor: float | None = None, **shape: Any) -> DecoderLM.Config:
    """Returns a Llama 3: 128,256 tokens, base 500,000, stretched `factor` times from 8,192 tokens; else as `llama`."""
    scaling = None if factor is None else Llama3Scaling.Config(factor=factor)
    positions = Rotary.Config(theta=500_000.0, scaling=scaling, trained_length=8192)
    return llama(vocab_size=128_256, positions=positions, **shape)


#: Llama 3 8B: 8,030,261,248 parameters.
llama3_8b = sized(llama3, 32, 4096, 32, 8, 14_336)
#: Llama 3 70B: 70,553,706,496 parameters.
llama3_70b = sized(llama3, 80, 8192, 64, 8, 28_672)
#: Llama 3.1 8B: 8,030,261,248 parameters, 131,072 tokens of context.
llama31_8b = sized(llama3, 32, 4096, 32, 8, 14_336, factor=8.0)
#: Llama 3.1 70B: 70,553,706,496 parameters.
llama31_70b = sized(llama3, 80, 8192, 64, 8, 28_672, factor=8.0)
#: Llama 3.1 405B: 405,853,388,800 parameters.
llama31_405b = sized(llama3, 126, 16_384, 128, 8, 53_248, factor=8.0)
#: Llama 3.2 1B: 1,235,814,400 parameters, tied.
llama32_1b = sized(llama3, 16, 2048, 32, 8, 8192, factor=32.0, tied=True)
#: Llama 3.2 3B: 3,212,749,824 parameters, tied.
llama32_3b = sized(llama3, 28, 3072, 24, 8, 8192, factor=32.0, tied=True)
#: A Llama shape of 1.1B parameters, for one accelerator.
llama_1b = sized(llama, 22, 2048, 32, 4, 5632, trained_length=2048)


def llama_tiny() -> DecoderLM.Config:
    """Returns a Llama that learns on a laptop: 4 layers of width 192, tied, byte-pair vocabulary of 2,048.

    A table drawn at width ** -0.5 makes the tied head's logits of size 1 from the start, which saves a third of the
    steps that the usual 0.02 needs to learn more than token frequencies.
    """
    cfg = llama(
        num_layers=4,
        input_dim=192,
        num_heads=6,
        num_kv_heads=2,
        hidden_dim=512,
        vocab_size=2048,
        tied=True,
        trained_length=256,
    )
    cfg.embedding.set(init_stddev=192**-0.5)
    return cfg
