"""Pictures to normal distributions of latents, and back (Rombach et al. 2021, arXiv:2112.10752, appendix G)."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Pretrained

from kanawa_layers.basic.conv import Conv, square_conv
from kanawa_layers.diffusion.conv_tower import ConvTower
from kanawa_layers.diffusion.denoiser import Autoencoder

#: Logs of variances are cut to this, as in released code.
_LOWEST, _HIGHEST = -30.0, 20.0


class KLAutoencoder(Autoencoder, Pretrained):
    """An encoder to means and log variances, and a decoder; latents are (mean - `shift`) * `scale` for other models."""

    encoder: ConvTower
    to_moments: Conv | None
    from_latents: Conv | None
    decoder: ConvTower

    class Config(Autoencoder.Config, Pretrained.Config):
        num_channels: kn.Size = 3
        latent_dim: kn.Size = 4
        scale: kn.Positive = 0.18215
        shift: kn.Finite = 0.0
        encoder: ConvTower.Config = kn.REQUIRED
        to_moments: Conv.Config | None = square_conv(1, bias=True)
        from_latents: Conv.Config | None = square_conv(1, bias=True)
        decoder: ConvTower.Config = kn.REQUIRED
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "encoder": "encoder", "to_moments": "quant_conv", "from_latents": "post_quant_conv",
                "decoder": "decoder",
            }
        )  # fmt: skip

        @property
        def factor(self) -> int:
            """How many pixels a side a latent stands for."""
            return int(2 ** sum(block.resize is not None for block in self.encoder.blocks))

    @classmethod
    def picture_shape(cls, cfg: Any, latents: tuple[int, int, int]) -> tuple[int, int, int]:
        """Returns the latents' sides times the factor."""
        return (latents[0] * cfg.factor, latents[1] * cfg.factor, cfg.num_channels)

    @classmethod
    def taken(cls, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Returns those of the autoencoder of a `VariationalAutoencoder`."""
        top = "autoencoder."
        return {path.removeprefix(top): leaf for path, leaf in stored.items() if path.startswith(top)}

    def setup(self) -> None:
        """Declares the parts."""
        cfg = self.config
        latent, moments = cfg.latent_dim, 2 * cfg.latent_dim
        self.add_child("encoder", cfg.encoder, input_dim=cfg.num_channels, output_dim=moments)
        self.add_child("to_moments", cfg.to_moments, input_dim=moments, output_dim=moments)
        self.add_child("from_latents", cfg.from_latents, input_dim=latent, output_dim=latent)
        self.add_child("decoder", cfg.decoder, input_dim=latent, output_dim=cfg.num_channels)

    def moments(self, images: Float[Array, "B H W C"]) -> tuple[Float[Array, "B h w D"], Float[Array, "B h w D"]]:
        """Returns means and logs of variances, fp32."""
        x = self.encoder(images)
        x = x if self.to_moments is None else self.to_moments(x)
        mean, log_variance = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return mean, jnp.clip(log_variance, _LOWEST, _HIGHEST)

    def pictures(self, unscaled: Float[Array, "B h w D"]) -> Float[Array, "B H W C"]:
        """Returns pictures, fp32, of latents as `moments` has them."""
        x = unscaled.astype(kn.current_plan().precision.compute)
        x = x if self.from_latents is None else self.from_latents(x)
        return self.decoder(x).astype(jnp.float32)

    def encode(self, images: Float[Array, "B H W C"]) -> Float[Array, "B h w D"]:
        """Returns scaled means."""
        mean, _ = self.moments(images)
        scaled: jax.Array = (mean - self.config.shift) * self.config.scale
        return scaled

    def decode(self, latents: Float[Array, "B h w D"]) -> Float[Array, "B H W C"]:
        """Returns the pictures, -1 to 1."""
        return self.pictures(latents / self.config.scale + self.config.shift)

    @kn.nowrap
    def flops_per_picture(self, shape: tuple[int, ...]) -> float:
        """Returns forward FLOPs there and back of a picture [height, width, channels]."""
        there, sides = self.encoder.flops_and_sides((shape[0], shape[1]))
        return there + self.decoder.flops_and_sides(sides)[0]
