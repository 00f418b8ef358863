"""The autoencoder of Stable Diffusion (Rombach et al. 2021, arXiv:2112.10752), of 4 and of 16 channels."""

from functools import partial
from typing import Any

import kanawa as kn
from kanawa.contracts import ForeignFamily

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.attention.masks import Bidirectional
from kanawa_layers.basic.conv import square_conv
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import GroupNorm
from kanawa_layers.diffusion.conv_tower import ConvBlock, ConvMiddle, ConvTower, Doubled, Halved, NormedConvs
from kanawa_layers.diffusion.kl_autoencoder import KLAutoencoder
from kanawa_layers.models.autoencoder import VariationalAutoencoder
from kanawa_layers.positions.biases import NoPositions
from kanawa_layers.recipes.hf_config import Foreign, expect

#: The class of `diffusers`, which its config.json names in place of a model_type.
CLASS = "AutoencoderKL"
_ATTENTION = kn.foreign.Names(
    children={"query": "to_q", "key": "to_k", "value": "to_v", "output": "to_out.0", "positions": ""}
)


def autoencoder_kl(
    *,
    widths: tuple[int, ...] = (128, 256, 512, 512),
    depth: int = 2,
    latent_dim: int = 4,
    num_channels: int = 3,
    num_groups: int = 32,
    scale: float = 0.18215,
    shift: float = 0.0,
    quantises: bool = True,
    attends: bool = True,
    image_size: int = 256,
    kl_weight: float = 1e-6,
) -> VariationalAutoencoder.Config:
    """Returns an autoencoder of any size, which halves pictures once for each width but the last.

    `quantises` has a 1 x 1 convolution on either side of the latents, as the first releases do.
    """
    norm = GroupNorm.Config(num_groups=num_groups, eps=1e-6)
    layer = NormedConvs.Config(first_norm=norm, second_norm=norm)
    linear = Linear.Config(bias=True)
    attention = GroupedQueryAttention.Config(
        num_heads=1,
        mask=Bidirectional.Config(),
        query=linear,
        key=linear,
        value=linear,
        output=linear,
        positions=NoPositions.Config(),
        foreign=_ATTENTION,
    )
    middle = ConvMiddle.Config(before=layer, norm=norm, attention=attention if attends else None, after=layer)
    last = len(widths) - 1

    def blocks(sizes: tuple[int, ...], layers: int, resize: Any) -> tuple[ConvBlock.Config, ...]:
        return tuple(
            ConvBlock.Config(output_dim=width, layers=(layer,) * layers, resize=None if i == last else resize)
            for i, width in enumerate(sizes)
        )

    parts: dict[str, Any] = {"middle": middle, "norm": norm}
    encoder = ConvTower.Config(first_dim=widths[0], blocks=blocks(widths, depth, Halved.Config()), **parts)
    decoder = ConvTower.Config(
        first_dim=widths[-1], middle_first=True, blocks=blocks(widths[::-1], depth + 1, Doubled.Config()), **parts
    )
    names = decoder.foreign.clone()
    decoder.set(foreign=names.set(children={**names.children, "blocks": "up_blocks.{}"}))
    around = square_conv(1, bias=True) if quantises else None
    made = KLAutoencoder.Config(
        num_channels=num_channels,
        latent_dim=latent_dim,
        scale=scale,
        shift=shift,
        encoder=encoder,
        decoder=decoder,
        to_moments=around,
        from_latents=around,
    )
    return VariationalAutoencoder.Config(autoencoder=made, image_size=image_size, kl_weight=kl_weight)


def from_hf(config: Foreign) -> VariationalAutoencoder.Config:
    """Returns the model of a config.json of `diffusers`."""
    widths = tuple(config["block_out_channels"])
    expect(
        config,
        act_fn="silu",
        out_channels=config.get("in_channels", 3),
        use_post_quant_conv=config.get("use_quant_conv", True),
        down_block_types=["DownEncoderBlock2D"] * len(widths),
        up_block_types=["UpDecoderBlock2D"] * len(widths),
        latents_mean=None,
        latents_std=None,
    )
    return autoencoder_kl(
        widths=widths,
        depth=config.get("layers_per_block", 1),
        latent_dim=config.get("latent_channels", 4),
        num_channels=config.get("in_channels", 3),
        num_groups=config.get("norm_num_groups", 32),
        scale=config.get("scaling_factor", 0.18215),
        shift=config.get("shift_factor") or 0.0,
        quantises=config.get("use_quant_conv", True),
        attends=config.get("mid_block_add_attention", True),
        image_size=config.get("sample_size", 32),
    )


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    made = cfg.autoencoder
    blocks = made.encoder.blocks
    quantises = made.to_moments is not None
    return {
        "_class_name": CLASS,
        "act_fn": "silu",
        "block_out_channels": [block.output_dim for block in blocks],
        "down_block_types": ["DownEncoderBlock2D"] * len(blocks),
        "up_block_types": ["UpDecoderBlock2D"] * len(blocks),
        "layers_per_block": len(blocks[0].layers),
        "latent_channels": made.latent_dim,
        "in_channels": made.num_channels,
        "out_channels": made.num_channels,
        "norm_num_groups": made.encoder.norm.num_groups,
        "sample_size": cfg.image_size,
        "scaling_factor": made.scale,
        "shift_factor": made.shift or None,
        "use_quant_conv": quantises,
        "use_post_quant_conv": quantises,
        "mid_block_add_attention": made.encoder.middle.attention is not None,
    }


FAMILY = ForeignFamily(from_hf, to_hf)

#: That of Stable Diffusion 1 and 2, and of DiT: 83,653,863 parameters.
sd_vae = partial(autoencoder_kl, image_size=512)
#: That of Stable Diffusion 3, of 16 channels: 83,819,683 parameters.
sd3_vae = partial(autoencoder_kl, latent_dim=16, scale=1.5305, shift=0.0609, quantises=False, image_size=1024)
#: For pictures of 32 pixels, to try things out.
vae_tiny = partial(
    autoencoder_kl, widths=(16, 32, 32), depth=1, num_groups=8, scale=1.0, attends=False, image_size=32, kl_weight=1e-3
)
