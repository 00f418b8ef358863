"""Whisper (Radford et al. 2022, arXiv:2212.04356, table 1, and the released configs)."""

from functools import partial
from typing import Any

import kanawa as kn
from kanawa.contracts import ForeignFamily

from kanawa_layers.attention.cross import CrossAttention
from kanawa_layers.attention.masks import Bidirectional, Causal
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import LayerNorm
from kanawa_layers.feedforward.activations import gelu_exact
from kanawa_layers.models.encoder_decoder import Tower
from kanawa_layers.models.head import TiedHead
from kanawa_layers.models.speech_to_text import SpeechToText
from kanawa_layers.positions.absolute import LearnedPositions
from kanawa_layers.recipes.biased import biased_stack
from kanawa_layers.recipes.hf_config import Foreign, Key, activation, activation_name, arguments, expect, written
from kanawa_layers.speech.frames import ConvStem, StoredSinusoids
from kanawa_layers.speech.log_mel import LogMel
from kanawa_layers.stack.residual_blocks import CrossPreNormBlock, PreNormBlock

_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
_ATTENTION = kn.foreign.Names(children={**_PROJECTIONS, "positions": ""})
_FEED_FORWARD = kn.foreign.Names(children={"up": "fc1", "down": "fc2"})
_BRANCHES = {
    "attention": "self_attn",
    "attention_norm": "self_attn_layer_norm",
    "feed_forward": "",
    "feed_forward_norm": "final_layer_norm",
}
_ENCODER_BLOCK = kn.foreign.Names(children=_BRANCHES)
_DECODER_BLOCK = kn.foreign.Names(
    children={**_BRANCHES, "cross_attention": "encoder_attn", "cross_attention_norm": "encoder_attn_layer_norm"}
)
_TOWER = kn.foreign.Names(children={"stack": "", "norm": "layer_norm"})
_MODEL = kn.foreign.Names(
    children={
        "stem": "model.encoder",
        "frame_positions": "model.encoder.embed_positions",
        "encoder": "model.encoder",
        "embedding": "model.decoder.embed_tokens",
        "positions": "model.decoder.embed_positions",
        "decoder": "model.decoder",
        "head": "proj_out",
    }
)

_KEYS = (
    Key("encoder_layers", "num_layers", "encoder.stack.num_layers"),
    Key("decoder_layers", "num_decoder_layers", "decoder.stack.num_layers"),
    Key("d_model", "input_dim", "input_dim"),
    Key("encoder_attention_heads", "num_heads", "encoder.stack.layer.attention.num_heads"),
    Key("encoder_ffn_dim", "hidden_dim", "encoder.stack.layer.feed_forward.hidden_dim"),
    Key("num_mel_bins", "num_mels", "features.num_mels", 80),
    Key("vocab_size", "vocab_size", "vocab_size"),
    Key("max_source_positions", "max_frames", "frame_positions.max_length", 1500),
    Key("max_target_positions", "max_length", "positions.max_length", 448),
    Key("eos_token_id", "end_id", "end_id"),
)


def whisper(
    *,
    num_layers: int,
    input_dim: int,
    num_heads: int,
    hidden_dim: int | None = None,
    num_decoder_layers: int | None = None,
    num_mels: int = 80,
    vocab_size: int = 51_865,
    max_frames: int = 1500,
    max_length: int = 448,
    prompt_ids: tuple[int, ...] = (50_258,),
    end_id: int = 50_257,
) -> SpeechToText.Config:
    """Returns a Whisper of any size: `max_frames` frames of the encoder are 20 ms each, two of the spectrogram."""
    norm, linear, keys = LayerNorm.Config(eps=1e-5), Linear.Config(bias=True), Linear.Config()
    shape: dict[str, Any] = {
        "num_heads": num_heads,
        "hidden_dim": hidden_dim or 4 * input_dim,
        "norm": norm,
        "activation": gelu_exact,
        "attention": _ATTENTION,
        "feed_forward": _FEED_FORWARD,
    }
    cross = CrossAttention.Config(
        num_heads=num_heads,
        memory_length=max_frames,
        query=linear,
        key=keys,
        value=linear,
        output=linear,
        foreign=kn.foreign.Names(children=_PROJECTIONS),
    )
    reading = biased_stack(
        PreNormBlock.Config,
        "layers.{}",
        num_layers=num_layers,
        mask=Bidirectional.Config(),
        foreign=_ENCODER_BLOCK,
        **shape,
    )
    writing = biased_stack(
        partial(CrossPreNormBlock.Config, cross_attention=cross, cross_attention_norm=norm),
        "layers.{}",
        num_layers=num_decoder_layers or num_layers,
        mask=Causal.Config(),
        foreign=_DECODER_BLOCK,
        **shape,
    )
    for stack in (reading, writing):
        stack.layer.attention.set(key=keys.clone())
    return SpeechToText.Config(
        vocab_size=vocab_size,
        input_dim=input_dim,
        prompt_ids=prompt_ids,
        end_id=end_id,
        features=LogMel.Config(num_mels=num_mels),
        stem=ConvStem.Config(activation=gelu_exact),
        frame_positions=StoredSinusoids.Config(max_length=max_frames),
        positions=LearnedPositions.Config(max_length=max_length),
        encoder=Tower.Config(stack=reading, norm=norm, foreign=_TOWER),
        decoder=Tower.Config(stack=writing, norm=norm, foreign=_TOWER),
        head=TiedHead.Config(),
        foreign=_MODEL,
    )


def from_hf(config: Foreign) -> SpeechToText.Config:
    """Returns the model of a `whisper` config.json."""
    sizes = arguments(config, _KEYS)
    expect(
        config,
        decoder_attention_heads=sizes["num_heads"],
        decoder_ffn_dim=sizes["hidden_dim"],
        scale_embedding=False,
        tie_word_embeddings=True,
    )
    cfg = whisper(**sizes, prompt_ids=(config["decoder_start_token_id"],))
    function = activation(config.get("activation_function", "gelu"))
    cfg.stem.set(activation=function)
    for tower in (cfg.encoder, cfg.decoder):
        tower.stack.layer.feed_forward.set(activation=function)
    return cfg


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    layer = cfg.decoder.stack.layer
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        **written(cfg, _KEYS),
        "decoder_attention_heads": layer.attention.num_heads,
        "decoder_ffn_dim": layer.feed_forward.hidden_dim,
        "decoder_start_token_id": cfg.prompt_ids[0],
        # As released; the default ids may lie outside of a smaller vocabulary.
        "pad_token_id": cfg.end_id,
        "bos_token_id": cfg.end_id,
        "activation_function": activation_name(cfg.stem.activation, "gelu"),
        "scale_embedding": False,
        "tie_word_embeddings": True,
        "is_encoder_decoder": True,
    }


FAMILY = ForeignFamily(from_hf, to_hf)

#: Whisper tiny: 37,184,640 parameters, and 576,000 stored numbers of positions.
whisper_tiny = partial(whisper, num_layers=4, input_dim=384, num_heads=6)
#: Whisper base: 71,825,920 parameters.
whisper_base = partial(whisper, num_layers=6, input_dim=512, num_heads=8)
#: Whisper small: 240,582,912 parameters.
whisper_small = partial(whisper, num_layers=12, input_dim=768, num_heads=12)
#: Whisper medium: 762,321,920 parameters.
whisper_medium = partial(whisper, num_layers=24, input_dim=1024, num_heads=16)
#: Whisper large v3: 1,541,570,560 parameters, 128 bands.
whisper_large_v3 = partial(
    whisper, num_layers=32, input_dim=1280, num_heads=20, num_mels=128, vocab_size=51_866, prompt_ids=(50_258,)
)
