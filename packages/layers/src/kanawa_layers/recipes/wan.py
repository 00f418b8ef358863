"""Wan 2.1 (Wan Team 2025, arXiv:2503.20314): videos by a text, with flow matching on latents of 16 channels."""

from functools import partial
from typing import Any

import kanawa as kn
from kanawa.contracts import ForeignFamily

from kanawa_layers.attention.cross import CrossAttention
from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.attention.masks import Bidirectional
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import LayerNorm, RMSNorm, UnitLayerNorm
from kanawa_layers.diffusion.conditions import TimeEmbedding
from kanawa_layers.diffusion.flow_matching import FlowMatching
from kanawa_layers.diffusion.video_blocks import VideoBlock
from kanawa_layers.feedforward.activations import gelu_tanh
from kanawa_layers.feedforward.plain import PlainFeedForward
from kanawa_layers.models.diffusion import DiffusionModel
from kanawa_layers.models.video_transformer import VideoTransformer
from kanawa_layers.positions.space_time import SpaceTimeRotary
from kanawa_layers.recipes.hf_config import Foreign, Key, arguments, expect, written
from kanawa_layers.recipes.text_encoders import encoder_from_hf, encoder_to_hf
from kanawa_layers.stack.repeated import RepeatedStack

#: The class of `diffusers`, which its config.json names in place of a model_type.
CLASS = "WanTransformer3DModel"
_LAYER = "denoiser.stack.layer"
_KEYS = (
    Key("num_layers", "num_layers", "denoiser.stack.num_layers"),
    Key("num_attention_heads", "num_heads", f"{_LAYER}.attention.num_heads"),
    Key("ffn_dim", "hidden_dim", f"{_LAYER}.feed_forward.hidden_dim"),
    Key("in_channels", "num_channels", "denoiser.num_channels", 16),
    Key("text_dim", "text_dim", "denoiser.text_dim", 4096),
    Key("freq_dim", "num_waves", "denoiser.time.num_waves", 256),
    Key("eps", "norm_eps", f"{_LAYER}.attention_norm.eps", 1e-6),
)
_NAMES = {
    "query": "to_q", "key": "to_k", "value": "to_v", "output": "to_out.0", "query_norm": "norm_q", "key_norm": "norm_k",
}  # fmt: skip
_NETWORK = kn.foreign.Names(
    children={
        "patches": "patch_embedding",
        "time": "condition_embedder.time_embedder",
        "time_vectors": "condition_embedder.time_proj",
        "text": "condition_embedder.text_embedder",
        "stack": "",
        "norm": "norm_out",
        "modulation": "",
        "head": "proj_out",
    }
)


def wan(
    *,
    num_layers: int,
    num_heads: int,
    hidden_dim: int,
    head_dim: int = 128,
    num_channels: int = 16,
    shape: tuple[int, int, int] = (21, 60, 104),
    patch: tuple[int, int, int] = (1, 2, 2),
    text_dim: int = 4096,
    text_length: int = 512,
    num_waves: int = 256,
    norm_eps: float = 1e-6,
    cross_norm: bool = True,
    shift: float = 3.0,
) -> DiffusionModel.Config:
    """Returns a video transformer of any size; `shape` is of latents: 81 frames of 480 x 832 pixels by default."""
    linear = Linear.Config(bias=True)
    projections: dict[str, Any] = dict.fromkeys(("query", "key", "value", "output"), linear)
    norms: dict[str, Any] = dict.fromkeys(("query_norm", "key_norm"), RMSNorm.Config(eps=norm_eps))
    layer = VideoBlock.Config(
        attention_norm=UnitLayerNorm.Config(eps=norm_eps),
        attention=GroupedQueryAttention.Config(
            num_heads=num_heads,
            num_kv_heads=num_heads,
            mask=Bidirectional.Config(),
            positions=SpaceTimeRotary.Config(),
            norm_all_heads=True,
            foreign=kn.foreign.Names(children={**_NAMES, "positions": ""}),
            **projections,
            **norms,
        ),
        cross_norm=LayerNorm.Config(eps=norm_eps) if cross_norm else None,
        cross_attention=CrossAttention.Config(
            num_heads=num_heads,
            norm_all_heads=True,
            foreign=kn.foreign.Names(children=_NAMES),
            **projections,
            **norms,
        ),
        feed_forward_norm=UnitLayerNorm.Config(eps=norm_eps),
        feed_forward=PlainFeedForward.Config(
            hidden_dim=hidden_dim,
            activation=gelu_tanh,
            up=linear,
            down=linear,
            foreign=kn.foreign.Names(children={"up": "net.0.proj", "down": "net.2"}),
        ),
    )
    network = VideoTransformer.Config(
        input_dim=num_heads * head_dim,
        shape=shape,
        num_channels=num_channels,
        patch=patch,
        text_length=text_length,
        text_dim=text_dim,
        time=TimeEmbedding.Config(num_waves=num_waves),
        stack=RepeatedStack.Config(
            num_layers=num_layers, layer=layer, foreign=kn.foreign.Names(children={"layer": "blocks.{}"})
        ),
        norm=UnitLayerNorm.Config(eps=norm_eps),
        foreign=_NETWORK,
    )
    return DiffusionModel.Config(denoiser=network, objective=FlowMatching.Config(shift=shift))


def from_hf(config: Foreign) -> DiffusionModel.Config:
    """Returns the model of a config.json of `diffusers`: of text alone, for videos of the default shape."""
    expect(
        config,
        out_channels=config.get("in_channels", 16),
        qk_norm="rms_norm_across_heads",
        image_dim=None,
        added_kv_proj_dim=None,
        pos_embed_seq_len=None,
    )
    patch = tuple(config.get("patch_size", (1, 2, 2)))
    made = wan(
        **arguments(config, _KEYS),
        head_dim=config["attention_head_dim"],
        patch=(patch[0], patch[1], patch[2]),
        cross_norm=config.get("cross_attn_norm", True),
    )
    return made.set(encoder=encoder_from_hf(config))


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    network = cfg.denoiser
    layer = network.stack.layer
    return {
        "_class_name": CLASS,
        **written(cfg, _KEYS),
        **encoder_to_hf(cfg),
        "attention_head_dim": network.input_dim // layer.attention.num_heads,
        "out_channels": network.num_channels,
        "patch_size": list(network.patch),
        "cross_attn_norm": layer.cross_norm is not None,
        "qk_norm": "rms_norm_across_heads",
        "image_dim": None,
        "added_kv_proj_dim": None,
        "pos_embed_seq_len": None,
        "rope_max_seq_len": 1024,
    }


FAMILY = ForeignFamily(from_hf, to_hf)

#: 1,418,996,800 parameters.
wan21_13b = partial(wan, num_layers=30, num_heads=12, hidden_dim=8960)
#: 14,288,491,584 parameters.
wan21_14b = partial(wan, num_layers=40, num_heads=40, hidden_dim=13824)
#: To try things out: four frames of 8 x 8 latents.
wan_tiny = partial(
    wan, num_layers=2, num_heads=2, head_dim=24, hidden_dim=96, num_channels=4, shape=(4, 8, 8), text_dim=16,
    text_length=8, num_waves=32, shift=1.0,
)  # fmt: skip
