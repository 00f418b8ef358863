"""The residual network: convolutions with batch norms, in stages of ever smaller and wider pictures."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int, Num
from kanawa.contracts import Norm

from kanawa_layers.basic.conv import Conv
from kanawa_layers.basic.norms import BatchNorm
from kanawa_layers.basic.pixels import PixelNorm
from kanawa_layers.feedforward.activations import relu
from kanawa_layers.models.vision import ImageEncoder, refuse_grids


class ConvNorm(kn.Module):
    """activation(norm(convolution(x))); `activation` None leaves it out."""

    convolution: Conv
    norm: Norm

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        output_dim: kn.Size = kn.REQUIRED
        convolution: Conv.Config = kn.REQUIRED
        norm: Norm.Config = BatchNorm.Config()
        activation: Callable[..., Array] | None = relu
        foreign: kn.foreign.Names = kn.foreign.Names(children={"convolution": "convolution", "norm": "normalization"})

    def setup(self) -> None:
        """Declares the convolution and the norm."""
        cfg = self.config
        self.add_child("convolution", cfg.convolution, input_dim=cfg.input_dim, output_dim=cfg.output_dim)
        self.add_child("norm", cfg.norm, input_dim=cfg.output_dim)

    def forward(self, x: Float[Array, "B H W C"]) -> Float[Array, "B h w D"]:
        """Returns the convolved picture."""
        x = self.norm(self.convolution(x))
        return x if self.config.activation is None else self.config.activation(x)

    @kn.nowrap
    def flops_and_side(self, sides: tuple[int, int]) -> tuple[float, tuple[int, int]]:
        """Returns forward matmul FLOPs of a picture of these sides, and the sides of what comes out."""
        strides = self.config.convolution.strides or (1, 1)
        out = (-(-sides[0] // strides[0]), -(-sides[1] // strides[1]))
        return self.convolution.flops_per_token(1) * math.prod(out), out


class ResidualConvs(kn.Module):
    """activation(shortcut(x) + layers(x)); without a `shortcut`, x itself (He et al. 2015, arXiv:1512.03385)."""

    layers: tuple[ConvNorm, ...]
    shortcut: ConvNorm | None

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        layers: tuple[ConvNorm.Config, ...] = kn.REQUIRED
        shortcut: ConvNorm.Config | None = None
        activation: Callable[..., Array] = relu
        foreign: kn.foreign.Names = kn.foreign.Names(children={"layers": "layer.{}", "shortcut": "shortcut"})

    def setup(self) -> None:
        """Declares the convolutions, each from the last one's channels."""
        cfg = self.config
        dim = cfg.input_dim
        for i, layer in enumerate(cfg.layers):
            self.add_child(f"layers[{i}]", layer, input_dim=dim)
            dim = layer.output_dim
        self.add_child("shortcut", cfg.shortcut, input_dim=cfg.input_dim)

    def forward(self, x: Float[Array, "B H W C"]) -> Float[Array, "B h w D"]:
        """Returns the sum, activated."""
        y = x
        for layer in self.layers:
            y = layer(y)
        activated: jax.Array = self.config.activation(y + (x if self.shortcut is None else self.shortcut(x)))
        return activated

    @kn.nowrap
    def flops_and_side(self, sides: tuple[int, int]) -> tuple[float, tuple[int, int]]:
        """Returns what `ConvNorm.flops_and_side` does, of all of them."""
        total = 0.0 if self.shortcut is None else self.shortcut.flops_and_side(sides)[0]
        for layer in self.layers:
            flops, sides = layer.flops_and_side(sides)
            total += flops
        return total, sides


class ConvStage(kn.Module):
    """Residual layers of one width."""

    layers: tuple[ResidualConvs, ...]

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        layers: tuple[ResidualConvs.Config, ...] = kn.REQUIRED
        foreign: kn.foreign.Names = kn.foreign.Names(children={"layers": "layers.{}"})

    def setup(self) -> None:
        """Declares the layers."""
        dim = self.config.input_dim
        for i, layer in enumerate(self.config.layers):
            self.add_child(f"layers[{i}]", layer, input_dim=dim)
            dim = layer.layers[-1].output_dim

    def forward(self, x: Float[Array, "B H W C"]) -> Float[Array, "B h w D"]:
        """Returns the last layer's picture."""
        for layer in self.layers:
            x = layer(x)
        return x


class ResNet(ImageEncoder):
    """Pictures to one vector for each place of the last stage (He et al. 2015, arXiv:1512.03385, table 1).

    `image_size` is that of the pictures that data are cut to; the network takes any.
    """

    pixels: PixelNorm
    stem: ConvNorm
    stages: tuple[ConvStage, ...]

    class Config(ImageEncoder.Config):
        image_size: kn.Size = 224
        num_channels: kn.Size = 3
        #: The mean and spread of ImageNet's channels, which released weights expect.
        pixels: PixelNorm.Config = PixelNorm.Config(mean=(0.485, 0.456, 0.406), stddev=(0.229, 0.224, 0.225))
        stem: ConvNorm.Config = kn.REQUIRED
        #: Whether the stem ends with the largest of 3 x 3 pixels, at every other one.
        pools: bool = True
        stages: tuple[ConvStage.Config, ...] = kn.REQUIRED
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={"stem": "embedder.embedder", "stages": "encoder.stages.{}"}
        )

    @classmethod
    def image_shape(cls, cfg: Any) -> Mapping[str, tuple[int, ...]]:
        """Returns the shape of `image_size`."""
        return {"images": (cfg.image_size, cfg.image_size, cfg.num_channels)}

    def setup(self) -> None:
        """Declares the stem and the stages."""
        cfg = self.config
        self.add_child("pixels", cfg.pixels)
        self.add_child("stem", cfg.stem, input_dim=cfg.num_channels)
        dim = cfg.stem.output_dim
        for i, stage in enumerate(cfg.stages):
            self.add_child(f"stages[{i}]", stage, input_dim=dim)
            dim = stage.layers[-1].layers[-1].output_dim

    def forward(self, images: Num[Array, "B H W C"], grids: Int[Array, "B 2"] | None = None) -> Float[Array, "B T E"]:
        """Returns the places of the last stage, row by row; raises ModuleError for `grids`."""
        refuse_grids(self, grids)
        x = self.stem(self.pixels(images))
        if self.config.pools:
            # Minus infinity pads, so that it is never the largest.
            x = jax.lax.reduce_window(
                x, jnp.asarray(-jnp.inf, x.dtype), jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1),
                ((0, 0), (1, 1), (1, 1), (0, 0)),
            )  # fmt: skip
        for stage in self.stages:
            x = stage(x)
        return x.reshape(x.shape[0], -1, x.shape[-1])

    @kn.nowrap
    def flops_per_image(self, shape: tuple[int, ...]) -> float:
        """Returns forward matmul FLOPs of an image [height, width, channels]."""
        total, sides = self.stem.flops_and_side((shape[0], shape[1]))
        if self.config.pools:
            sides = (-(-sides[0] // 2), -(-sides[1] // 2))
        for stage in self.stages:
            for layer in stage.layers:
                flops, sides = layer.flops_and_side(sides)
                total += flops
        return total
