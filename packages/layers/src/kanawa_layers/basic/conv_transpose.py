"""Transposed convolution, which makes an array larger: the gradient of a strided convolution, as a layer."""

import math
from typing import Literal

import jax
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.arrays.broadcast import along_last

from kanawa_layers.basic.conv import channels_last


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
        return y + along_last(self.param("bias"), y.ndim) if cfg.bias else y

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns two FLOPs a weight for each input position."""
        del context_length
        cfg = self.config
        return float(2.0 * math.prod(cfg.window) * cfg.input_dim * cfg.output_dim)
