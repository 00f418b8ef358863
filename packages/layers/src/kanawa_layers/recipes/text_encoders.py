"""Encoders of texts in a diffusion model's config.json, whose files hold them beside the network, and a small one."""

from typing import Any

from kanawa.contracts import ForeignConfigError

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.attention.masks import Bidirectional
from kanawa_layers.basic.linear import Linear
from kanawa_layers.diffusion.text_encoder import TextEncoder
from kanawa_layers.diffusion.text_reader import TextReader
from kanawa_layers.feedforward.activations import gelu_tanh
from kanawa_layers.feedforward.plain import PlainFeedForward
from kanawa_layers.models.encoder_decoder import EncoderDecoderLM
from kanawa_layers.models.pretrained_text import EncoderText, TowerText
from kanawa_layers.positions.absolute import LearnedPositions
from kanawa_layers.positions.biases import NoPositions
from kanawa_layers.recipes import clip, t5
from kanawa_layers.recipes.hf_config import Foreign, activation
from kanawa_layers.stack.repeated import RepeatedStack
from kanawa_layers.stack.residual_blocks import PreNormBlock

#: A key of ours in configs of `diffusers`, which ignores it.
KEY = "text_encoder"
_READER = "text_reader"
_SIGLIP = "siglip_text_model"


def text_reader(
    *, input_dim: int, vocab_size: int, length: int, num_layers: int = 1, num_heads: int = 4, hidden_dim: int = 0
) -> TextReader.Config:
    """Returns a reader that learns with the pictures; `hidden_dim` 0 is twice the width."""
    linear = Linear.Config(bias=True)
    layer = PreNormBlock.Config(
        attention=GroupedQueryAttention.Config(
            num_heads=num_heads, mask=Bidirectional.Config(), positions=NoPositions.Config()
        ),
        feed_forward=PlainFeedForward.Config(
            hidden_dim=hidden_dim or 2 * input_dim, activation=gelu_tanh, up=linear, down=linear
        ),
    )
    return TextReader.Config(
        input_dim=input_dim,
        vocab_size=vocab_size,
        length=length,
        positions=LearnedPositions.Config(max_length=length),
        stack=RepeatedStack.Config(num_layers=num_layers, layer=layer),
    )


def encoder_from_hf(config: Foreign) -> TextEncoder.Config | None:
    """Returns the encoder of a diffusion model's config.json; None of one that has none, as `diffusers` writes them."""
    text = config.get(KEY)
    if text is None:
        return None
    kind = text.get("model_type")
    if kind == _READER:
        return text_reader(**{name: value for name, value in text.items() if name != "model_type"})
    shared: dict[str, Any] = {name: text[name] for name in ("length", "pad_id", "hides_padding")}
    if kind == "t5":
        whole = t5.from_hf(text)
        parts: dict[str, Any] = {name: getattr(whole, name) for name in ("input_dim", "embedding", "encoder")}
        return EncoderText.Config(vocab_size=whole.vocab_size, **parts, **shared)
    if kind not in (_SIGLIP, "clip_text_model"):
        message = f"{KEY}.model_type is {kind!r}, expected {_READER}, clip_text_model, {_SIGLIP} or t5"
        raise ForeignConfigError(message)
    siglip = kind == _SIGLIP
    tower = clip.text_tower(
        siglip=siglip,
        num_layers=text["num_hidden_layers"],
        input_dim=text["hidden_size"],
        num_heads=text["num_attention_heads"],
        hidden_dim=text["intermediate_size"],
        vocab_size=text["vocab_size"],
        max_length=text["max_position_embeddings"],
        end_id=None if siglip else clip.end_of(text),
        activation=activation(text["hidden_act"]),
        norm_eps=text["layer_norm_eps"],
    )
    return TowerText.Config(vocab_size=tower.vocab_size, output_dim=text["projection_size"], tower=tower, **shared)


def encoder_to_hf(cfg: Any) -> dict[str, Any]:
    """Returns what says so in config.json, {} without an encoder; raises ForeignConfigError for another kind of one."""
    encoder = cfg.encoder
    if encoder is None:
        return {}
    if isinstance(encoder, TextReader.Config):
        layer = encoder.stack.layer
        sizes = {name: getattr(encoder, name) for name in ("input_dim", "vocab_size", "length")}
        sizes |= {"num_layers": encoder.stack.num_layers, "num_heads": layer.attention.num_heads}
        return {KEY: {"model_type": _READER, **sizes, "hidden_dim": layer.feed_forward.hidden_dim}}
    if isinstance(encoder, TowerText.Config):
        siglip = encoder.tower.end_id is None
        text = clip.text_to_hf(encoder.tower, encoder.output_dim, siglip) | {"projection_size": encoder.output_dim}
    elif isinstance(encoder, EncoderText.Config):
        # T5's config names both towers.
        parts: dict[str, Any] = {name: getattr(encoder, name) for name in ("vocab_size", "input_dim", "embedding")}
        whole = EncoderDecoderLM.Config(**parts, encoder=encoder.encoder, decoder=encoder.encoder)
        text = {"model_type": "t5", **t5.to_hf(whole)}
    else:
        message = f"no file of this kind holds a {type(encoder).__qualname__} beside the network"
        raise ForeignConfigError(message)
    return {KEY: {**text, **{name: getattr(encoder, name) for name in ("length", "pad_id", "hides_padding")}}}
