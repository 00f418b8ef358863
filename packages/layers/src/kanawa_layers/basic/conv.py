"""Convolution over one, two or three axes, channels last, strided, dilated, grouped or causal; and its transpose."""

import math
from typing import Literal

import jax
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.arrays.broadcast import spread

#: "causal" pads the front only, so that an output sees no later input; or (before, after) for each axis.
Padding = Literal["same", "valid", "causal"] | tuple[tuple[int, int], ...]


class Conv(kn.Module):
    """Slides a weight [*window, inputs of a group, output_dim] over x [batch, *axes, input_dim].

    `depthwise` gives each channel a filter of its own; output_dim must then be a multiple of input_dim. It ignores
    packed segments: each row must be one sequence or image (`CausalConv` of recurrent layers handles segments).
    """

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        output_dim: kn.Size = kn.FROM_PARENT
        window: tuple[kn.Size, ...] = kn.REQUIRED
        strides: tuple[kn.Size, ...] | None = None
        dilation: tuple[kn.Size, ...] | None = None
        padding: Padding = "same"
        groups: kn.Size = 1
        depthwise: bool = False
        bias: bool = True
        axes: tuple[str | None, str | None] = ("embed", None)
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"weight": "weight", "bias": "bias"})

        def check(self) -> list[str]:
            """Returns what is wrong with the window and the groups."""
            rank, problems = len(self.window), []
            for name in ("strides", "dilation"):
                value = getattr(self, name)
                if value is not None and len(value) != rank:
                    problems.append(f"{name} {value} doesn't have the {rank} axes of window {self.window}")
            if not isinstance(self.padding, str) and len(self.padding) != rank:
                problems.append(f"padding {self.padding} doesn't have the {rank} axes of window {self.window}")
            if self.depthwise and self.groups != 1:
                problems.append("depthwise means one group a channel; leave groups unset")
            if isinstance(self.input_dim, int) and isinstance(self.output_dim, int):
                groups = self.input_dim if self.depthwise else self.groups
                if self.input_dim % groups or self.output_dim % groups:
                    sizes = f"input_dim ({self.input_dim}) and output_dim ({self.output_dim})"
                    problems.append(f"{sizes} are not both multiples of the {groups} groups")
            return problems

    def setup(self) -> None:
        """Declares `weight`, drawn with variance 1 / (inputs of one output), and `bias`."""
        cfg = self.config
        rank = len(cfg.window)
        self.groups = cfg.input_dim if cfg.depthwise else cfg.groups
        self.add_param(
            "weight",
            # XLA takes the inputs of one group here: 1 makes it depthwise.
            (*cfg.window, cfg.input_dim // self.groups, cfg.output_dim),
            # With groups, the inputs' axis is only a part of `embed`, and can't be sharded like it.
            axes=(*("conv",) * rank, cfg.axes[0] if self.groups == 1 else None, cfg.axes[1]),
            fan_in_axes=tuple(range(rank + 1)),
            fan_out_axes=(rank + 1,),
        )
        if cfg.bias:
            self.add_param("bias", (cfg.output_dim,), axes=(cfg.axes[1],), init=kn.zeros, weight_decay=0.0)

    def forward(self, x: Float[Array, "B *axes C"]) -> Float[Array, "B *axes D"]:
        """Returns the convolved array."""
        cfg, rank = self.config, len(self.config.window)
        dilation = cfg.dilation or (1,) * rank
        y = jax.lax.conv_general_dilated(
            x,
            self.param("weight"),
            window_strides=cfg.strides or (1,) * rank,
            padding=explicit_padding(cfg.padding, cfg.window, dilation),
            rhs_dilation=dilation,
            dimension_numbers=channels_last(rank),
            feature_group_count=self.groups,
        )
        return y + spread(self.param("bias"), y.shape) if cfg.bias else y

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns two FLOPs a weight for each output position."""
        del context_length
        cfg = self.config
        return float(2.0 * math.prod(cfg.window) * (cfg.input_dim // self.groups) * cfg.output_dim)


def explicit_padding(
    padding: Padding, window: tuple[int, ...], dilation: tuple[int, ...]
) -> str | tuple[tuple[int, int], ...]:
    """Returns the padding as XLA takes it."""
    if padding == "causal":
        return tuple(((size - 1) * step, 0) for size, step in zip(window, dilation, strict=True))
    return padding.upper() if isinstance(padding, str) else padding


def channels_last(rank: int) -> tuple[str, str, str]:
    """Returns the layouts of input, weight and output for so many axes."""
    axes = "DHW"[-rank:]
    return f"N{axes}C", f"{axes}IO", f"N{axes}C"


class ConvTranspose(kn.Module):
    """Spreads each position of x [batch, *axes, input_dim] over a window, at distances of `strides`.

    With "same", an axis of length n becomes n * stride; with "valid", (n - 1) * stride + window at least.
    """

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        output_dim: kn.Size = kn.FROM_PARENT
        window: tuple[kn.Size, ...] = kn.REQUIRED
        strides: tuple[kn.Size, ...] | None = None
        padding: Literal["same", "valid"] = "same"
        bias: bool = True
        axes: tuple[str | None, str | None] = ("embed", None)
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"weight": "weight", "bias": "bias"})

        def check(self) -> list[str]:
            """Returns what is wrong with the strides."""
            if self.strides is None or len(self.strides) == len(self.window):
                return []
            return [f"strides {self.strides} doesn't have the {len(self.window)} axes of window {self.window}"]

    def setup(self) -> None:
        """Declares `weight` [*window, input_dim, output_dim] and `bias`."""
        cfg, rank = self.config, len(self.config.window)
        self.add_param(
            "weight",
            (*cfg.window, cfg.input_dim, cfg.output_dim),
            axes=(*("conv",) * rank, *cfg.axes),
            fan_in_axes=(rank,),
            fan_out_axes=(rank + 1,),
        )
        if cfg.bias:
            self.add_param("bias", (cfg.output_dim,), axes=(cfg.axes[1],), init=kn.zeros, weight_decay=0.0)

    def forward(self, x: Float[Array, "B *axes C"]) -> Float[Array, "B *axes D"]:
        """Returns the enlarged array."""
        cfg, rank = self.config, len(self.config.window)
        # The window isn't flipped (transpose_kernel is False), as it is in a convolution's gradient and in PyTorch.
        y = jax.lax.conv_transpose(
            x,
            self.param("weight"),
            strides=cfg.strides or (1,) * rank,
            padding=cfg.padding.upper(),
            dimension_numbers=channels_last(rank),
        )
        return y + spread(self.param("bias"), y.shape) if cfg.bias else y

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns two FLOPs a weight for each input position."""
        del context_length
        cfg = self.config
        return float(2.0 * math.prod(cfg.window) * cfg.input_dim * cfg.output_dim)


#: Of torch's convolutions, which are [outputs, inputs, height, width].
CONV_2D = kn.foreign.Names(
    tensors={
        "weight": kn.foreign.Tensor(name="weight", form=kn.foreign.Permuted.Config(order=(3, 2, 0, 1))),
        "bias": "bias",
    }
)


def square_conv(size: int, stride: int = 1, *, bias: bool = False) -> Conv.Config:
    """Returns a convolution of `size` x `size` pixels, padded as torch's are with padding=size // 2."""
    padding = ((size // 2, size // 2),) * 2
    return Conv.Config(
        window=(size, size),
        strides=(stride, stride),
        padding=padding,
        bias=bias,
        # The channels of pictures are few: only the outputs are cut.
        axes=(None, "embed"),
        foreign=CONV_2D,
    )
