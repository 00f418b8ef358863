"""DiT (Peebles and Xie 2022, arXiv:2212.09748, table 1): latents of ImageNet's pictures, by label."""

from functools import partial
from typing import Any

import kanawa as kn
from kanawa.contracts import ForeignConfigError, ForeignFamily

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.attention.masks import Bidirectional
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import UnitLayerNorm
from kanawa_layers.basic.patches import PatchEmbedding
from kanawa_layers.diffusion.blocks import ModulatedBlock
from kanawa_layers.diffusion.conditions import TimeEmbedding
from kanawa_layers.diffusion.ddpm import DDPM
from kanawa_layers.diffusion.flow_matching import FlowMatching
from kanawa_layers.diffusion.modulation import AdaptiveZero
from kanawa_layers.diffusion.objective import Objective
from kanawa_layers.feedforward.activations import gelu_tanh
from kanawa_layers.feedforward.plain import PlainFeedForward
from kanawa_layers.models.diffusion import DiffusionModel
from kanawa_layers.models.dit import DiT, PatchHead
from kanawa_layers.positions.biases import NoPositions
from kanawa_layers.recipes.hf_config import Foreign, Key, arguments, expect, written
from kanawa_layers.stack.repeated import RepeatedStack

#: The class of `diffusers`, which its config.json names in place of a model_type.
CLASS = "DiTTransformer2DModel"
_EMBEDDERS = "norm1.emb"
_TIME, _LABEL = "timestep_embedder", "class_embedder"
#: Every block of a file has the embedders, which are one here and in the paper.
_OF_TIME = {
    f"{_EMBEDDERS}.{_TIME}.{theirs}.{array}": f"time.{ours}.{array}"
    for ours, theirs in (("up", "linear_1"), ("down", "linear_2"))
    for array in ("weight", "bias")
}
_OF_LABEL = {f"{_EMBEDDERS}.{_LABEL}.embedding_table.weight": "label.weight"}
_ATTENTION = kn.foreign.Names(
    children={"query": "to_q", "key": "to_k", "value": "to_v", "output": "to_out.0", "positions": ""}
)
_NETWORK = kn.foreign.Names(
    children={
        "patches": "pos_embed",
        "positions": "",
        "time": f"transformer_blocks.0.{_EMBEDDERS}.{_TIME}",
        "label": f"transformer_blocks.0.{_EMBEDDERS}.{_LABEL}",
        "stack": "",
        "head": "",
    }
)
_KEYS = (
    Key("num_layers", "num_layers", "denoiser.stack.num_layers"),
    Key("num_attention_heads", "num_heads", "denoiser.stack.layer.attention.num_heads"),
    Key("in_channels", "num_channels", "denoiser.patches.num_channels", 4),
    Key("sample_size", "image_size", "denoiser.image_size", 32),
    Key("patch_size", "patch_size", "denoiser.patches.patch_size", 2),
    Key("num_embeds_ada_norm", "num_classes", "num_classes", 1000),
    Key("norm_eps", "norm_eps", "denoiser.stack.layer.feed_forward_norm.eps", 1e-5),
)


def dit(
    *,
    num_layers: int,
    input_dim: int,
    num_heads: int,
    patch_size: int = 2,
    image_size: int = 32,
    num_channels: int = 4,
    num_classes: int = 1000,
    norm_eps: float = 1e-5,
    learns_variance: bool = False,
    objective: Objective.Config | None = None,
) -> DiffusionModel.Config:
    """Returns a DiT of any size, of square pictures; those of 1 or 3 channels are pixels, others latents.

    The lowest frequency of its times is that of `diffusers`; the paper's own code has one that is 4 % higher.
    """
    linear = Linear.Config(bias=True)
    layer = ModulatedBlock.Config(
        attention=GroupedQueryAttention.Config(
            num_heads=num_heads,
            num_kv_heads=num_heads,
            mask=Bidirectional.Config(),
            query=linear,
            key=linear,
            value=linear,
            output=linear,
            positions=NoPositions.Config(),
            foreign=_ATTENTION,
        ),
        feed_forward=PlainFeedForward.Config(
            hidden_dim=4 * input_dim,
            activation=gelu_tanh,
            up=linear,
            down=linear,
            foreign=kn.foreign.Names(children={"up": "net.0.proj", "down": "net.2"}),
        ),
        attention_norm=UnitLayerNorm.Config(),
        feed_forward_norm=UnitLayerNorm.Config(eps=norm_eps),
    )
    names = layer.foreign.clone()
    layer.set(foreign=names.set(copies={**_OF_TIME, **(_OF_LABEL if num_classes else {})}))
    network = DiT.Config(
        input_dim=input_dim,
        image_size=image_size,
        is_latent=num_channels not in (1, 3),
        learns_variance=learns_variance,
        patches=PatchEmbedding.Config(
            patch_size=patch_size,
            num_channels=num_channels,
            foreign=kn.foreign.Names(children={"projection": "proj"}),
        ),
        time=TimeEmbedding.Config(reaches_longest=True),
        stack=RepeatedStack.Config(
            num_layers=num_layers,
            layer=layer,
            foreign=kn.foreign.Names(children={"layer": "transformer_blocks.{}"}),
        ),
        head=PatchHead.Config(
            modulation=AdaptiveZero.Config(foreign=kn.foreign.Names(children={"linear": "proj_out_1"}))
        ),
        foreign=_NETWORK,
    )
    return DiffusionModel.Config(num_classes=num_classes, denoiser=network, objective=objective or DDPM.Config())


def from_hf(config: Foreign) -> DiffusionModel.Config:
    """Returns the model of a config.json of `diffusers`, with the schedule that the paper trained with."""
    expect(
        config,
        attention_bias=True,
        activation_fn="gelu-approximate",
        norm_type="ada_norm_zero",
        norm_elementwise_affine=False,
    )
    channels = config.get("in_channels", 4)
    outputs = config.get("out_channels") or channels
    if outputs not in (channels, 2 * channels):
        message = f"out_channels is {outputs}, expected {channels}, or {2 * channels} with the variance"
        raise ForeignConfigError(message)
    labels = config.get("id2label") or {}
    cfg = dit(
        **arguments(config, _KEYS),
        input_dim=config["num_attention_heads"] * config["attention_head_dim"],
        learns_variance=outputs != channels,
    )
    return cfg.set(class_names=tuple(labels[key] for key in sorted(labels, key=int)))


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`; names of labels are a key of ours, which `diffusers` ignores."""
    network = cfg.denoiser
    channels = network.patches.num_channels
    names = {"id2label": {str(i): name for i, name in enumerate(cfg.class_names)}} if cfg.class_names else {}
    return {
        "_class_name": CLASS,
        **written(cfg, _KEYS),
        "attention_head_dim": network.input_dim // network.stack.layer.attention.num_heads,
        "out_channels": 2 * channels if network.learns_variance else channels,
        "attention_bias": True,
        "activation_fn": "gelu-approximate",
        "norm_type": "ada_norm_zero",
        "norm_elementwise_affine": False,
        **names,
    }


FAMILY = ForeignFamily(from_hf, to_hf)

_S = partial(dit, num_layers=12, input_dim=384, num_heads=6)
_B = partial(dit, num_layers=12, input_dim=768, num_heads=12)
_L = partial(dit, num_layers=24, input_dim=1024, num_heads=16)
_XL = partial(dit, num_layers=28, input_dim=1152, num_heads=16)
#: The sizes of table 1, each with patches of 2, 4 and 8: DiT-XL/2 has 675 million parameters and takes 119 GMACs.
dit_s_2, dit_s_4, dit_s_8 = (partial(_S, patch_size=size) for size in (2, 4, 8))
dit_b_2, dit_b_4, dit_b_8 = (partial(_B, patch_size=size) for size in (2, 4, 8))
dit_l_2, dit_l_4, dit_l_8 = (partial(_L, patch_size=size) for size in (2, 4, 8))
dit_xl_2, dit_xl_4, dit_xl_8 = (partial(_XL, patch_size=size) for size in (2, 4, 8))
#: For grey pictures of 16 pixels, to try things out: draws digits after minutes on a processor.
dit_tiny = partial(
    dit,
    num_layers=4,
    input_dim=128,
    num_heads=4,
    image_size=16,
    num_channels=1,
    num_classes=10,
    objective=FlowMatching.Config(),
)
