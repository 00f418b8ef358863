"""Stable Diffusion 3 (Esser et al. 2024, arXiv:2403.03206): latents of 16 channels, by the states of a text."""

from functools import partial
from typing import Any

import kanawa as kn
from kanawa.contracts import ForeignConfigError, ForeignFamily

from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.basic.patches import PatchEmbedding
from kanawa_layers.diffusion.flow_matching import FlowMatching
from kanawa_layers.diffusion.joint_blocks import JointAttention, JointBlock, ScaleFirst
from kanawa_layers.diffusion.text_encoder import TextEncoder
from kanawa_layers.feedforward.activations import gelu_tanh
from kanawa_layers.feedforward.plain import PlainFeedForward
from kanawa_layers.models.diffusion import DiffusionModel
from kanawa_layers.models.dit import PatchHead
from kanawa_layers.models.mmdit import MMDiT, StoredGrid
from kanawa_layers.recipes.hf_config import Foreign, Key, arguments, expect, written
from kanawa_layers.recipes.text_encoders import encoder_from_hf, encoder_to_hf, text_reader
from kanawa_layers.stack.chained import ChainedStack
from kanawa_layers.stack.repeated import RepeatedStack

#: The class of `diffusers`, which its config.json names in place of a model_type.
CLASS = "SD3Transformer2DModel"
_FIRST = "denoiser.stack.stacks[0].layer"
_KEYS = (
    Key("num_attention_heads", "num_heads", f"{_FIRST}.attention.num_heads"),
    Key("in_channels", "num_channels", "denoiser.patches.num_channels", 16),
    Key("sample_size", "image_size", "denoiser.image_size", 128),
    Key("patch_size", "patch_size", "denoiser.patches.patch_size", 2),
    Key("joint_attention_dim", "text_dim", "denoiser.text_dim", 4096),
    Key("pooled_projection_dim", "pooled_dim", "denoiser.pooled_dim", 2048),
    Key("pos_embed_max_size", "max_size", "denoiser.positions.max_size", 96),
)
_NETWORK = kn.foreign.Names(
    children={
        "patches": "pos_embed",
        "positions": "pos_embed",
        "time": "time_text_embed.timestep_embedder",
        "pooled": "time_text_embed.text_embedder",
        "context": "context_embedder",
        "stack": "",
        "head": "",
    }
)


def sd3(
    *,
    num_layers: int,
    num_heads: int,
    head_dim: int = 64,
    num_channels: int = 16,
    image_size: int = 128,
    patch_size: int = 2,
    text_dim: int = 4096,
    pooled_dim: int = 2048,
    text_length: int = 333,
    max_size: int = 96,
    qk_norm: bool = False,
    encoder: TextEncoder.Config | None = None,
    shift: float = 3.0,
) -> DiffusionModel.Config:
    """Returns an MMDiT of any size, of square pictures; those of 1 or 3 channels are pixels, others latents."""
    width = num_heads * head_dim
    norm = RMSNorm.Config(eps=1e-6) if qk_norm else None
    names = ("query_norm", "key_norm", "text_query_norm", "text_key_norm")
    attention = JointAttention.Config(num_heads=num_heads, **dict.fromkeys(names, norm))
    linear = Linear.Config(bias=True)
    feed_forward = PlainFeedForward.Config(
        hidden_dim=4 * width,
        activation=gelu_tanh,
        up=linear,
        down=linear,
        foreign=kn.foreign.Names(children={"up": "net.0.proj", "down": "net.2"}),
    )
    layer = JointBlock.Config(attention=attention, feed_forward=feed_forward, text_feed_forward=feed_forward)
    # Nothing reads the text after the last layer. Its queries' norm has no effect on it, and is in files.
    last = layer.clone().set(text_feed_forward=None, text_modulation=ScaleFirst.Config())
    last.attention.set(text_output=None)
    numbered = kn.foreign.Names(children={"layer": "transformer_blocks.{}"})
    stacks = [RepeatedStack.Config(num_layers=num_layers - 1, layer=layer, foreign=numbered)]
    stacks.append(RepeatedStack.Config(num_layers=1, layer=last, foreign=numbered))
    head = PatchHead.Config(
        modulation=ScaleFirst.Config(foreign=kn.foreign.Names(children={"vectors": "norm_out"})),
        foreign=kn.foreign.Names(children={"norm": "norm_out", "modulation": "", "projection": "proj_out"}),
    )
    network = MMDiT.Config(
        input_dim=width,
        image_size=image_size,
        is_latent=num_channels not in (1, 3),
        text_length=text_length,
        text_dim=text_dim,
        pooled_dim=pooled_dim,
        patches=PatchEmbedding.Config(
            patch_size=patch_size, num_channels=num_channels, foreign=kn.foreign.Names(children={"projection": "proj"})
        ),
        positions=StoredGrid.Config(max_size=max_size, base_size=image_size // patch_size),
        stack=ChainedStack.Config(stacks=tuple(stacks)),
        head=head,
        foreign=_NETWORK,
    )
    return DiffusionModel.Config(denoiser=network, encoder=encoder, objective=FlowMatching.Config(shift=shift))


def from_hf(config: Foreign) -> DiffusionModel.Config:
    """Returns the model of a config.json of `diffusers`; raises ForeignConfigError for layers that attend twice."""
    heads, head_dim = config["num_attention_heads"], config["attention_head_dim"]
    expect(
        config,
        out_channels=config.get("in_channels", 16),
        caption_projection_dim=heads * head_dim,
        dual_attention_layers=type(config.get("dual_attention_layers") or [])(),
    )
    norm = config.get("qk_norm")
    if norm not in (None, "rms_norm"):
        message = f"qk_norm is {norm!r}, expected None or 'rms_norm'"
        raise ForeignConfigError(message)
    return sd3(
        **arguments(config, _KEYS),
        num_layers=config["num_layers"],
        head_dim=head_dim,
        qk_norm=norm is not None,
        encoder=encoder_from_hf(config),
    )


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`; an encoder of texts is a key of ours, which `diffusers` ignores."""
    network = cfg.denoiser
    attention = network.stack.stacks[0].layer.attention
    return {
        "_class_name": CLASS,
        **written(cfg, _KEYS),
        **encoder_to_hf(cfg),
        "num_layers": sum(stack.num_layers for stack in network.stack.stacks),
        "attention_head_dim": network.input_dim // attention.num_heads,
        "out_channels": network.patches.num_channels,
        "caption_projection_dim": network.input_dim,
        "dual_attention_layers": [],
        "qk_norm": None if attention.query_norm is None else "rms_norm",
    }


FAMILY = ForeignFamily(from_hf, to_hf)


def mmdit_tiny(vocab_size: int = 259, text_length: int = 40) -> DiffusionModel.Config:
    """Returns a small one that reads texts itself and makes coloured pictures of 16 pixels."""
    return sd3(
        num_layers=4, num_heads=4, head_dim=32, num_channels=3, image_size=16, patch_size=2, text_dim=64, pooled_dim=64,
        text_length=text_length, max_size=8, qk_norm=True, shift=1.0,
        encoder=text_reader(input_dim=64, vocab_size=vocab_size, length=text_length),
    )  # fmt: skip


#: Stable Diffusion 3 medium, of pictures of 1,024 pixels.
sd3_medium = partial(sd3, num_layers=24, num_heads=24, max_size=192)
#: Stable Diffusion 3.5 large.
sd35_large = partial(sd3, num_layers=38, num_heads=38, max_size=192, qk_norm=True)
