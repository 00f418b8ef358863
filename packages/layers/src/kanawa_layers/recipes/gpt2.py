"""GPT-2 (Radford et al. 2019, and the released configs): LayerNorm, learned positions, biases, tied head."""

from functools import partial
from typing import Any

import kanawa as kn
from kanawa.contracts import ForeignFamily

from kanawa_layers.attention.masks import Causal
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import LayerNorm
from kanawa_layers.feedforward.activations import gelu_tanh
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.head import TiedHead
from kanawa_layers.positions.absolute import LearnedPositions
from kanawa_layers.recipes.biased import biased_stack
from kanawa_layers.recipes.hf_config import Foreign, Key, activation, activation_name, arguments, expect, written
from kanawa_layers.stack.residual_blocks import PreNormBlock

#: GPT-2's projections are stored [in, out].
_LINEAR = Linear.Config(
    bias=True,
    foreign=kn.foreign.Names(
        tensors={
            "weight": kn.foreign.Tensor(name="weight", form=kn.foreign.Matrix.Config(transposed=False)),
            "bias": kn.foreign.Tensor(name="bias", form=kn.foreign.Flat.Config()),
        }
    ),
)
_ATTENTION = kn.foreign.Names(
    children={"output": "c_proj"},
    joined=(kn.foreign.Joined(name="c_attn", parts=("query", "key", "value"), axis=-1),),
)
_FEED_FORWARD = kn.foreign.Names(children={"up": "c_fc", "down": "c_proj"})
_BLOCK = kn.foreign.Names(
    children={"attention": "attn", "feed_forward": "mlp", "attention_norm": "ln_1", "feed_forward_norm": "ln_2"}
)
_MODEL = kn.foreign.Names(
    children={
        "embedding": "transformer.wte",
        "positions": "transformer.wpe",
        "stack": "transformer",
        "norm": "transformer.ln_f",
        "head": "lm_head",
    },
    # Not biases, but the causal mask, a buffer of older checkpoints.
    ignored=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
    optional_prefix="transformer.",
)


_KEYS = (
    Key("n_layer", "num_layers", "stack.num_layers"),
    Key("n_embd", "input_dim", "input_dim"),
    Key("n_head", "num_heads", "stack.layer.attention.num_heads"),
    Key("n_inner", "hidden_dim", "stack.layer.feed_forward.hidden_dim", None),
    Key("vocab_size", "vocab_size", "vocab_size"),
    Key("n_positions", "max_length", "positions.max_length"),
    Key("layer_norm_epsilon", "norm_eps", "norm.eps", 1e-5),
)


def gpt2(
    *,
    num_layers: int,
    input_dim: int,
    num_heads: int,
    hidden_dim: int | None = None,
    vocab_size: int = 50_257,
    max_length: int = 1024,
    norm_eps: float = 1e-5,
) -> DecoderLM.Config:
    """Returns a GPT-2 of any size."""
    norm = LayerNorm.Config(eps=norm_eps)
    stack = biased_stack(
        PreNormBlock.Config,
        "h.{}",
        num_layers=num_layers,
        num_heads=num_heads,
        hidden_dim=hidden_dim or 4 * input_dim,
        norm=norm,
        activation=gelu_tanh,
        mask=Causal.Config(),
        linear=_LINEAR,
        attention=_ATTENTION,
        feed_forward=_FEED_FORWARD,
        foreign=_BLOCK,
    )
    return DecoderLM.Config(
        vocab_size=vocab_size,
        input_dim=input_dim,
        positions=LearnedPositions.Config(max_length=max_length, init_stddev=0.01),
        stack=stack,
        norm=norm,
        head=TiedHead.Config(),
        foreign=_MODEL,
    )


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `gpt2` config.json."""
    expect(
        config,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
    )
    cfg = gpt2(**arguments(config, _KEYS))
    cfg.stack.layer.feed_forward.set(activation=activation(config.get("activation_function", "gelu_new")))
    return cfg


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        **written(cfg, _KEYS),
        "activation_function": activation_name(cfg.stack.layer.feed_forward.activation, "gelu_new"),
        "tie_word_embeddings": True,
    }


FAMILY = ForeignFamily(from_hf, to_hf)

#: GPT-2: 124,439,808 parameters.
gpt2_small = partial(gpt2, num_layers=12, input_dim=768, num_heads=12)
#: GPT-2 medium: 354,823,168 parameters.
gpt2_medium = partial(gpt2, num_layers=24, input_dim=1024, num_heads=16)
#: GPT-2 large: 774,030,080 parameters.
gpt2_large = partial(gpt2, num_layers=36, input_dim=1280, num_heads=20)
#: GPT-2 XL: 1,557,611,200 parameters.
gpt2_xl = partial(gpt2, num_layers=48, input_dim=1600, num_heads=25)
