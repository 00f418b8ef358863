"""Pixels to numbers around zero: the first layer of a model that sees, so that it takes pictures as they are."""

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Num
from kanawa.arrays.broadcast import along_last
from kanawa.errors import ModuleError


class PixelNorm(kn.Module):
    """(pixels / 255 - mean) / stddev, one number a channel or one for all; computed in fp32.

    Only integer images are pixels, 0 to 255; those of floats are taken for normalised already, and pass unchanged.
    """

    class Config(kn.Module.Config):
        mean: tuple[kn.Fraction, ...] = (0.5,)
        stddev: tuple[kn.Positive, ...] = (0.5,)

    def forward(self, images: Num[Array, "B H W C"]) -> Float[Array, "B H W C"]:
        """Returns the images in the compute dtype; raises ModuleError where the channels have other numbers."""
        cfg, compute = self.config, kn.current_plan().precision.compute
        if jnp.issubdtype(images.dtype, jnp.floating):
            return images.astype(compute)
        mean, stddev = (jnp.asarray(numbers, jnp.float32) for numbers in (cfg.mean, cfg.stddev))
        for name, numbers in (("mean", mean), ("stddev", stddev)):
            if numbers.size not in (1, images.shape[-1]):
                message = f"{self.path}: {name} has {numbers.size} numbers; images have {images.shape[-1]} channels"
                raise ModuleError(message)
        scaled = images.astype(jnp.float32) / 255.0
        return ((scaled - along_last(mean, 4)) / along_last(stddev, 4)).astype(compute)

    def restore(self, images: Float[Array, "B H W C"]) -> Num[Array, "B H W C"]:
        """Returns the pixels that normalised images stand for, uint8: rounded, and cut at 0 and 255."""
        cfg = self.config
        mean, stddev = (along_last(jnp.asarray(numbers, jnp.float32), 4) for numbers in (cfg.mean, cfg.stddev))
        pixels = (images.astype(jnp.float32) * stddev + mean) * 255.0
        return jnp.clip(jnp.round(pixels), 0.0, 255.0).astype(jnp.uint8)
