"""Mamba-2 (arXiv:2405.21060, and the released state-spaces/mamba2-* configs): mixers alone, tied head."""

from functools import partial
from typing import Any

import kanawa as kn
from kanawa.contracts import ForeignFamily

from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.head import TiedHead, UntiedHead
from kanawa_layers.recipes.hf_config import Foreign, Key, arguments, expect, written
from kanawa_layers.recurrent.mamba2 import Mamba2
from kanawa_layers.stack.repeated import RepeatedStack
from kanawa_layers.stack.residual_blocks import MixerBlock

_MODEL = kn.foreign.Names(
    children={"embedding": "backbone.embeddings", "stack": "backbone", "norm": "backbone.norm_f", "head": "lm_head"}
)


#: Defaults of absent keys are transformers', not those of the released models.
_KEYS = (
    Key("num_hidden_layers", "num_layers", "stack.num_layers"),
    Key("hidden_size", "input_dim", "input_dim"),
    Key("num_heads", "num_heads", "stack.layer.mixer.num_heads"),
    Key("expand", "expand", "stack.layer.mixer.expand", 2),
    Key("state_size", "state_dim", "stack.layer.mixer.state_dim", 128),
    Key("n_groups", "num_groups", "stack.layer.mixer.num_groups", 8),
    Key("conv_kernel", "conv_width", "stack.layer.mixer.value_conv.width", 4),
    Key("vocab_size", "vocab_size", "vocab_size"),
    Key("use_bias", "bias", "stack.layer.mixer.output.bias", False),
    Key("use_conv_bias", "conv_bias", "stack.layer.mixer.value_conv.bias", True),
    Key("layer_norm_epsilon", "norm_eps", "norm.eps", 1e-5),
)


def mamba2(
    *,
    num_layers: int,
    input_dim: int,
    num_heads: int | None = None,
    expand: int = 2,
    state_dim: int = 128,
    num_groups: int = 1,
    conv_width: int = 4,
    vocab_size: int = 50_288,
    tied: bool = True,
    bias: bool = False,
    conv_bias: bool = True,
    step_limit: tuple[float, float] | None = None,
    norm_eps: float = 1e-5,
) -> DecoderLM.Config:
    """Returns a Mamba-2 of any size; without `num_heads`, heads are 64 wide. 50,288 is 50,277 rounded up to 16."""
    mixer = Mamba2.Config(
        num_heads=num_heads or expand * input_dim // 64,
        expand=expand,
        state_dim=state_dim,
        num_groups=num_groups,
        step_limit=step_limit,
    )
    for name in ("output_gate", "value", "key", "query", "step", "output"):
        getattr(mixer, name).set(bias=bias)
    for name in ("value_conv", "key_conv", "query_conv"):
        getattr(mixer, name).set(width=conv_width, bias=conv_bias)
    mixer.norm.set(eps=norm_eps)
    norm = RMSNorm.Config(eps=norm_eps)
    return DecoderLM.Config(
        vocab_size=vocab_size,
        input_dim=input_dim,
        stack=RepeatedStack.Config(num_layers=num_layers, layer=MixerBlock.Config(mixer=mixer, norm=norm)),
        norm=norm,
        head=TiedHead.Config() if tied else UntiedHead.Config(),
        foreign=_MODEL,
    )


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `mamba2` config.json."""
    expect(config, hidden_act="silu")
    low, high = config.get("time_step_limit", (0.0, float("inf")))
    unlimited = low == 0.0 and high == float("inf")
    return mamba2(
        **arguments(config, _KEYS),
        tied=config.get("tie_word_embeddings", False),
        step_limit=None if unlimited else (float(low), float(high)),
    )


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    mixer = cfg.stack.layer.mixer
    return {
        "architectures": ["Mamba2ForCausalLM"],
        **written(cfg, _KEYS),
        "head_dim": mixer.expand * cfg.input_dim // mixer.num_heads,
        "hidden_act": "silu",
        "tie_word_embeddings": isinstance(cfg.head, TiedHead.Config),
        **({} if mixer.step_limit is None else {"time_step_limit": list(mixer.step_limit)}),
    }


FAMILY = ForeignFamily(from_hf, to_hf)

#: Mamba-2 130M: 128,989,632 parameters.
mamba2_130m = partial(mamba2, num_layers=24, input_dim=768)
#: Mamba-2 370M: 368,346,624 parameters.
mamba2_370m = partial(mamba2, num_layers=48, input_dim=1024)
#: Mamba-2 780M: 780,161,280 parameters.
mamba2_780m = partial(mamba2, num_layers=48, input_dim=1536)
#: Mamba-2 1.3B: 1,343,757,312 parameters.
mamba2_1_3b = partial(mamba2, num_layers=48, input_dim=2048)
#: Mamba-2 2.7B: 2,702,599,680 parameters.
mamba2_2_7b = partial(mamba2, num_layers=64, input_dim=2560)


def mamba2_tiny() -> DecoderLM.Config:
    """Returns a Mamba-2 that learns on a laptop: 4 layers of width 192, tied, byte-pair vocabulary of 2,048."""
    cfg = mamba2(num_layers=4, input_dim=192, state_dim=32, vocab_size=2048)
    cfg.embedding.set(init_stddev=192**-0.5)
    return cfg
