"""Residual convolutions between pictures and latents: both halves of an autoencoder (VQGAN's, arXiv:2012.09841)."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Norm, SequenceMixer, Sequences

from kanawa_layers.basic.conv import Conv, square_conv
from kanawa_layers.basic.norms import GroupNorm

Sides = tuple[int, int]


def conv_flops(conv: Conv, sides: Sides) -> float:
    """Returns forward FLOPs of a convolution that puts out a picture of these sides."""
    return conv.flops_per_token(1) * math.prod(sides)


class NormedConvs(kn.Module):
    """x + second(activation(norm(first(activation(norm(x)))))); where widths differ, x is convolved."""

    first_norm: Norm
    first: Conv
    second_norm: Norm
    second: Conv
    shortcut: Conv | None

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        output_dim: kn.Size = kn.FROM_PARENT
        activation: Callable[..., Array] = jax.nn.silu
        first_norm: Norm.Config = GroupNorm.Config(eps=1e-6)
        first: Conv.Config = square_conv(3, bias=True)
        second_norm: Norm.Config = GroupNorm.Config(eps=1e-6)
        second: Conv.Config = square_conv(3, bias=True)
        shortcut: Conv.Config = square_conv(1, bias=True)
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "first_norm": "norm1", "first": "conv1", "second_norm": "norm2", "second": "conv2",
                "shortcut": "conv_shortcut",
            }
        )  # fmt: skip

    def setup(self) -> None:
        """Declares both convolutions with their norms, and the shortcut."""
        cfg = self.config
        inputs, outputs = cfg.input_dim, cfg.output_dim
        self.add_child("first_norm", cfg.first_norm, input_dim=inputs)
        self.add_child("first", cfg.first, input_dim=inputs, output_dim=outputs)
        self.add_child("second_norm", cfg.second_norm, input_dim=outputs)
        self.add_child("second", cfg.second, input_dim=outputs, output_dim=outputs)
        shortcut = None if inputs == outputs else cfg.shortcut
        self.add_child("shortcut", shortcut, input_dim=inputs, output_dim=outputs)

    def forward(self, x: Float[Array, "B H W C"]) -> Float[Array, "B H W D"]:
        """Returns the sum."""
        activation = self.config.activation
        y = self.first(activation(self.first_norm(x)))
        y = self.second(activation(self.second_norm(y)))
        return y + (x if self.shortcut is None else self.shortcut(x))

    @kn.nowrap
    def flops(self, sides: Sides) -> float:
        """Returns forward FLOPs of a picture of these sides."""
        parts = [self.first, self.second, *([] if self.shortcut is None else [self.shortcut])]
        return sum(conv_flops(part, sides) for part in parts)


class Halved(kn.Module):
    """A convolution with a stride of two, padded on the right and below alone."""

    convolution: Conv

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        convolution: Conv.Config = square_conv(3, 2, bias=True).set(padding=((0, 1), (0, 1)))
        foreign: kn.foreign.Names = kn.foreign.Names(children={"convolution": "downsamplers.0.conv"})

    factor = 0.5

    def setup(self) -> None:
        """Declares the convolution."""
        dim = self.config.input_dim
        self.add_child("convolution", self.config.convolution, input_dim=dim, output_dim=dim)

    def forward(self, x: Float[Array, "B H W C"]) -> Float[Array, "B h w C"]:
        """Returns a picture of half the sides."""
        return self.convolution(x)


class Doubled(kn.Module):
    """Each pixel four times, then a convolution."""

    convolution: Conv

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        convolution: Conv.Config = square_conv(3, bias=True)
        foreign: kn.foreign.Names = kn.foreign.Names(children={"convolution": "upsamplers.0.conv"})

    factor = 2.0

    def setup(self) -> None:
        """Declares the convolution."""
        dim = self.config.input_dim
        self.add_child("convolution", self.config.convolution, input_dim=dim, output_dim=dim)

    def forward(self, x: Float[Array, "B H W C"]) -> Float[Array, "B h w C"]:
        """Returns a picture of twice the sides."""
        return self.convolution(jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2))


class ConvBlock(kn.Module):
    """`depth` layers of one width, then a change of size, if any."""

    layers: tuple[NormedConvs, ...]
    resize: Halved | Doubled | None

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        output_dim: kn.Size = kn.REQUIRED
        layers: tuple[NormedConvs.Config, ...] = kn.REQUIRED
        resize: Halved.Config | Doubled.Config | None = None
        foreign: kn.foreign.Names = kn.foreign.Names(children={"layers": "resnets.{}", "resize": ""})

    def setup(self) -> None:
        """Declares the layers and the change of size."""
        cfg = self.config
        dim = cfg.input_dim
        for i, layer in enumerate(cfg.layers):
            self.add_child(f"layers[{i}]", layer, input_dim=dim, output_dim=cfg.output_dim)
            dim = cfg.output_dim
        self.add_child("resize", cfg.resize, input_dim=dim)

    def forward(self, x: Float[Array, "B H W C"]) -> Float[Array, "B h w D"]:
        """Returns the last picture."""
        for layer in self.layers:
            x = layer(x)
        return x if self.resize is None else self.resize(x)

    @kn.nowrap
    def flops_and_sides(self, sides: Sides) -> tuple[float, Sides]:
        """Returns forward FLOPs, and the sides of what comes out."""
        total = sum(layer.flops(sides) for layer in self.layers)
        if self.resize is None:
            return total, sides
        sides = (round(sides[0] * self.resize.factor), round(sides[1] * self.resize.factor))
        return total + conv_flops(self.resize.convolution, sides), sides


class ConvMiddle(kn.Module):
    """Two layers with attention over all places between them; `attention` None leaves it out."""

    before: NormedConvs
    norm: Norm | None
    attention: SequenceMixer | None
    after: NormedConvs

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        before: NormedConvs.Config = NormedConvs.Config()
        norm: Norm.Config = GroupNorm.Config(eps=1e-6)
        attention: SequenceMixer.Config | None = None
        after: NormedConvs.Config = NormedConvs.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "before": "resnets.0", "norm": "attentions.0.group_norm", "attention": "attentions.0",
                "after": "resnets.1",
            }
        )  # fmt: skip

    def setup(self) -> None:
        """Declares the layers."""
        cfg = self.config
        for name in ("before", "after"):
            self.add_child(name, getattr(cfg, name), input_dim=cfg.input_dim, output_dim=cfg.input_dim)
        self.add_child("norm", None if cfg.attention is None else cfg.norm, input_dim=cfg.input_dim)
        self.add_child("attention", cfg.attention, input_dim=cfg.input_dim)

    def forward(self, x: Float[Array, "B H W C"]) -> Float[Array, "B H W C"]:
        """Returns a picture of the same shape."""
        x = self.before(x)
        if self.attention is not None and self.norm is not None:
            rows = self.norm(x).reshape(x.shape[0], -1, x.shape[-1])
            y, _ = self.attention(rows, Sequences())
            x = x + y.reshape(x.shape)
        return self.after(x)

    @kn.nowrap
    def flops(self, sides: Sides) -> float:
        """Returns forward FLOPs of a picture of these sides."""
        places = math.prod(sides)
        mixing = 0.0 if self.attention is None else self.attention.flops_per_token(places) * places
        return self.before.flops(sides) + self.after.flops(sides) + mixing


class ConvTower(kn.Module):
    """A convolution in, blocks and a middle, and norm, activation and a convolution out.

    The middle comes first in a decoder (`middle_first`), last in an encoder: where places are fewest.
    """

    input: Conv
    blocks: tuple[ConvBlock, ...]
    middle: ConvMiddle
    norm: Norm
    output: Conv

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        output_dim: kn.Size = kn.FROM_PARENT
        first_dim: kn.Size = kn.REQUIRED
        middle_first: bool = False
        activation: Callable[..., Array] = jax.nn.silu
        input: Conv.Config = square_conv(3, bias=True)
        blocks: tuple[ConvBlock.Config, ...] = kn.REQUIRED
        middle: ConvMiddle.Config = ConvMiddle.Config()
        norm: Norm.Config = GroupNorm.Config(eps=1e-6)
        output: Conv.Config = square_conv(3, bias=True)
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "input": "conv_in", "blocks": "down_blocks.{}", "middle": "mid_block", "norm": "conv_norm_out",
                "output": "conv_out",
            }
        )  # fmt: skip

    def setup(self) -> None:
        """Declares the parts."""
        cfg = self.config
        self.add_child("input", cfg.input, input_dim=cfg.input_dim, output_dim=cfg.first_dim)
        dim = cfg.first_dim
        for i, block in enumerate(cfg.blocks):
            self.add_child(f"blocks[{i}]", block, input_dim=dim)
            dim = block.output_dim
        self.add_child("middle", cfg.middle, input_dim=cfg.first_dim if cfg.middle_first else dim)
        self.add_child("norm", cfg.norm, input_dim=dim)
        self.add_child("output", cfg.output, input_dim=dim, output_dim=cfg.output_dim)

    def forward(self, x: Float[Array, "B H W C"]) -> Float[Array, "B h w D"]:
        """Returns what the last convolution makes of it."""
        x = self.input(x)
        x = self.middle(x) if self.config.middle_first else x
        for block in self.blocks:
            x = block(x)
        x = x if self.config.middle_first else self.middle(x)
        return self.output(self.config.activation(self.norm(x)))

    @kn.nowrap
    def flops_and_sides(self, sides: Sides) -> tuple[float, Sides]:
        """Returns forward FLOPs, and the sides of what comes out."""
        total = conv_flops(self.input, sides)
        total += self.middle.flops(sides) if self.config.middle_first else 0.0
        for block in self.blocks:
            flops, sides = block.flops_and_sides(sides)
            total += flops
        total += 0.0 if self.config.middle_first else self.middle.flops(sides)
        return total + conv_flops(self.output, sides), sides
