"""Conformers (arXiv:2005.08100), FastConformers (arXiv:2305.05084): Parakeet with CTC, and sizes that learn here."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import kanawa as kn
from kanawa.contracts import ForeignFamily

from kanawa_layers.basic.conv import Conv
from kanawa_layers.basic.dropout import Dropout
from kanawa_layers.basic.linear import Linear
from kanawa_layers.feedforward.plain import PlainFeedForward
from kanawa_layers.models.speech_recogniser import SpeechRecogniser
from kanawa_layers.recipes.hf_config import Foreign, Key, activation, activation_name, arguments, expect, written
from kanawa_layers.recurrent.lstm import LSTM
from kanawa_layers.speech.conformer import POINTWISE, ConformerBlock, ConvolutionModule, RelativeAttention
from kanawa_layers.speech.frames import CONV_1D
from kanawa_layers.speech.heads import AlignmentHead, CTCHead, TransducerHead
from kanawa_layers.speech.log_mel import LogMel, NormalisedBands
from kanawa_layers.speech.subsampling import ConvSubsampling, halvings
from kanawa_layers.stack.repeated import RepeatedStack

_FEED_FORWARD = kn.foreign.Names(children={"up": "linear1", "down": "linear2"})
_MODEL = kn.foreign.Names(
    children={"subsampling": "encoder.subsampling", "stack": "encoder", "head": "ctc_head"},
    # A counter of batches, which only an average without a decay reads.
    ignored=("encoder.layers.*.conv.norm.num_batches_tracked",),
)

_KEYS = (
    Key("num_hidden_layers", "num_layers", "stack.num_layers"),
    Key("hidden_size", "input_dim", "input_dim"),
    Key("num_attention_heads", "num_heads", "stack.layer.attention.num_heads"),
    Key("intermediate_size", "hidden_dim", "stack.layer.feed_forward.hidden_dim"),
    Key("subsampling_conv_channels", "channels", "subsampling.channels", 256),
    Key("num_mel_bins", "num_mels", "features.num_mels", 80),
    Key("attention_bias", "bias", "stack.layer.attention.query.bias", True),
    Key("convolution_bias", "convolution_bias", "stack.layer.convolution.depthwise.bias", True),
    Key("scale_input", "scale_by_sqrt_dim", "subsampling.scale_by_sqrt_dim", True),
)


def conformer(
    *,
    num_layers: int,
    input_dim: int,
    num_heads: int,
    vocab_size: int,
    hidden_dim: int | None = None,
    window: int = 9,
    halved: int = 3,
    channels: int = 256,
    separable: bool = True,
    num_mels: int = 80,
    bias: bool = True,
    convolution_bias: bool = True,
    scale_by_sqrt_dim: bool = True,
    dropout: float | None = None,
    head: AlignmentHead.Config | None = None,
) -> SpeechRecogniser.Config:
    """Returns a FastConformer of any size with CTC, or another head; the last id is the blank.

    Frames of 10 ms are `halved` three times. The first Conformers halve twice, not `separable`, with windows of 31.
    """
    linear = Linear.Config(bias=bias)
    feed_forward = PlainFeedForward.Config(
        hidden_dim=hidden_dim or 4 * input_dim, activation=jax.nn.silu, up=linear, down=linear, foreign=_FEED_FORWARD
    )
    pointwise = Linear.Config(bias=convolution_bias, foreign=POINTWISE)
    layer = ConformerBlock.Config(
        first_feed_forward=feed_forward,
        attention=RelativeAttention.Config(num_heads=num_heads, query=linear, key=linear, value=linear, output=linear),
        convolution=ConvolutionModule.Config(
            up=pointwise,
            depthwise=Conv.Config(window=(window,), depthwise=True, bias=convolution_bias, foreign=CONV_1D),
            down=pointwise,
        ),
        feed_forward=feed_forward,
    )
    if dropout is not None:
        for name in ("first_feed_forward", "attention", "convolution", "feed_forward"):
            getattr(layer, f"{name}_residual").set(dropout=Dropout.Config(rate=dropout))
    features = LogMel.Config(
        num_mels=num_mels, fft_size=512, periodic=False, edges="zeros", preemphasis=0.97, scale=NormalisedBands.Config()
    )
    return SpeechRecogniser.Config(
        vocab_size=vocab_size,
        input_dim=input_dim,
        features=features,
        subsampling=ConvSubsampling.Config(
            channels=channels, convs=halvings(halved, separable=separable), scale_by_sqrt_dim=scale_by_sqrt_dim
        ),
        stack=RepeatedStack.Config(num_layers=num_layers, layer=layer),
        head=head or CTCHead.Config(),
        foreign=_MODEL,
    )


def from_hf(config: Foreign) -> SpeechRecogniser.Config:
    """Returns the model of a `parakeet_ctc` config.json."""
    encoder = config["encoder_config"]
    expect(encoder, subsampling_conv_kernel_size=3, subsampling_conv_stride=2)
    expect(config, pad_token_id=config["vocab_size"] - 1)
    cfg = conformer(
        **arguments(encoder, _KEYS),
        vocab_size=config["vocab_size"],
        window=encoder.get("conv_kernel_size", 9),
        halved=encoder.get("subsampling_factor", 8).bit_length() - 1,
    )
    _set_activation(cfg, activation(encoder.get("hidden_act", "silu")))
    return cfg


def _set_activation(cfg: Any, function: Callable[..., Any]) -> None:
    layer = cfg.stack.layer
    for part in (layer.first_feed_forward, layer.feed_forward, layer.convolution):
        part.set(activation=function)


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    encoder = {
        "model_type": "parakeet_encoder",
        **written(cfg, _KEYS),
        "hidden_act": activation_name(cfg.stack.layer.feed_forward.activation),
        "conv_kernel_size": cfg.stack.layer.convolution.depthwise.window[0],
        "subsampling_factor": 2 ** sum(conv.strides is not None for conv in cfg.subsampling.convs),
        "subsampling_conv_kernel_size": 3,
        "subsampling_conv_stride": 2,
    }
    return {
        "architectures": ["ParakeetForCTC"],
        "encoder_config": encoder,
        "vocab_size": cfg.vocab_size,
        "pad_token_id": cfg.vocab_size - 1,
    }


FAMILY = ForeignFamily(from_hf, to_hf)

#: Parakeet CTC 0.6B: 608,799,745 parameters.
parakeet_ctc_06b = partial(conformer, num_layers=24, input_dim=1024, num_heads=8, vocab_size=1025)
#: Parakeet CTC 1.1B: 1,062,540,289 parameters.
parakeet_ctc_11b = partial(conformer, num_layers=42, input_dim=1024, num_heads=8, vocab_size=1025)


def conformer_tiny(vocab_size: int = 30, head: AlignmentHead.Config | None = None) -> SpeechRecogniser.Config:
    """Returns a Conformer that learns a few words on a laptop: 4 layers of width 96, frames of 40 ms, CTC."""
    return conformer(
        num_layers=4, input_dim=96, num_heads=4, vocab_size=vocab_size, halved=2, channels=32, num_mels=40, head=head
    )


def conformer_tiny_transducer(vocab_size: int = 30) -> SpeechRecogniser.Config:
    """Returns the same encoder with an RNN transducer of width 96."""
    return conformer_tiny(vocab_size, TransducerHead.Config(prediction_dim=96, joint_dim=96, prediction=LSTM.Config()))
