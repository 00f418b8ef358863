"""The variational autoencoder as a model to train: what comes back, and how far latents are from a normal."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Num
from kanawa.contracts import ImageBatch, Model

from kanawa_layers.basic.pixels import PixelNorm
from kanawa_layers.diffusion.kl_autoencoder import KLAutoencoder


class VariationalAutoencoder(Model):
    """Mean squared error of the pixels, and `kl_weight` times the KL divergence from a standard normal, a pixel.

    Kingma and Welling 2013, arXiv:1312.6114. Both are means over pixels and channels: with `kl_weight` 1 and a variance
    of 1/2 of pixels, their sum is the negative bound up to a constant. Latents are drawn by the step's key in training;
    evaluation takes the means. `image_size` is that of the pictures that data are cut to. Labels are ignored.
    """

    batch = ImageBatch

    pixels: PixelNorm
    autoencoder: KLAutoencoder

    class Config(Model.Config):
        image_size: kn.Size = 256
        kl_weight: kn.NonNegative = 1e-6
        pixels: PixelNorm.Config = PixelNorm.Config()
        autoencoder: KLAutoencoder.Config = kn.REQUIRED
        foreign: kn.foreign.Names = kn.foreign.Names(children={"autoencoder": ""})

        def check(self) -> list[str]:
            """Returns that the size can't be halved so often."""
            factor = self.autoencoder.factor
            if self.image_size % factor == 0:
                return []
            return [f"image_size ({self.image_size}) is not a multiple of {factor}, pixels a side of a latent"]

    @classmethod
    def row_shapes(cls, cfg: Any) -> Mapping[str, tuple[int, ...]]:
        """Returns the shape of the images."""
        return {"images": (cfg.image_size, cfg.image_size, cfg.autoencoder.num_channels)}

    def setup(self) -> None:
        """Declares the parts."""
        self.add_child("pixels", self.config.pixels)
        self.add_child("autoencoder", self.config.autoencoder)

    @kn.nowrap
    def flops_per_row(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns those of the encoder and the decoder."""
        return self.autoencoder.flops_per_picture(shapes["images"])

    def predict(self, images: Num[Array, "B H W C"]) -> Float[Array, "B H W C"]:
        """Returns what comes back, fp32, -1 to 1, by the means of the latents."""
        mean, _ = self.autoencoder.moments(self.pixels(images))
        return self.autoencoder.pictures(mean)

    def forward(self, batch: ImageBatch) -> None:
        """Adds both losses, and records them apart; rows of weight 0 count for nothing."""
        images = self.pixels(batch.images)
        mean, log_variance = self.autoencoder.moments(images)
        latents = mean
        if self.train:
            latents = mean + jnp.exp(0.5 * log_variance) * jax.random.normal(self.next_key(), mean.shape, jnp.float32)
        back = self.autoencoder.pictures(latents)
        squares = jnp.mean((back - images.astype(jnp.float32)) ** 2, axis=(1, 2, 3))
        divergence = 0.5 * jnp.sum(mean**2 + jnp.exp(log_variance) - 1.0 - log_variance, axis=(1, 2, 3))
        divergence = divergence / images[0].size
        count = jnp.sum(batch.loss_weights)

        def summed(values: Float[Array, " B"]) -> Float[Array, ""]:
            return jnp.sum(values * batch.loss_weights)

        loss = summed(squares + self.config.kl_weight * divergence)
        self.add_loss("autoencoder", loss, count, primary=True)
        self.record("mean_squares", kn.Mean(summed(squares), count))
        self.record("kl", kn.Mean(summed(divergence), count))
