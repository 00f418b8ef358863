"""Fewer frames before the encoder: convolutions over time and bands that halve both (Conformer, FastConformer)."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int

from kanawa_layers.basic.conv import Conv
from kanawa_layers.basic.linear import Linear

_CONV_2D = kn.foreign.Names(
    tensors={
        "weight": kn.foreign.Tensor(name="weight", form=kn.foreign.Permuted.Config(order=(3, 2, 0, 1))),
        "bias": "bias",
    }
)
#: In checkpoints of separable ones the list of layers has activations, too: after the first and after each pair.
_LAYERS = {f"convs[{i}]": f"layers.{i + (i + 1) // 2}" for i in range(16)}


def halvings(count: int, *, separable: bool = True) -> tuple[Conv.Config, ...]:
    """Returns convolutions over 3 x 3 places that halve time and bands `count` times.

    After the first, where `separable`, each is one of every channel alone and a projection of channels (FastConformer,
    arXiv:2305.05084); without, as in the Conformer, all are whole (arXiv:2005.08100).
    """
    whole = Conv.Config(window=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1)), axes=(None, None), foreign=_CONV_2D)
    if not separable:
        return (whole,) * count
    each = whole.clone().set(depthwise=True)
    project = whole.clone().set(window=(1, 1), strides=None, padding="valid")
    return (whole, *(each, project) * (count - 1))


class ConvSubsampling(kn.Module):
    """Frames [B, T, bands] to [B, T / factor, embed], rounded up at each convolution that halves them.

    An activation follows every convolution that mixes channels. Frames past a row's own are zero.
    """

    convs: tuple[Conv, ...]
    projection: Linear

    class Config(kn.Module.Config):
        num_bands: kn.Size = kn.FROM_PARENT
        output_dim: kn.Size = kn.FROM_PARENT
        channels: kn.Size = 256
        convs: tuple[Conv.Config, ...] = halvings(3)
        scale_by_sqrt_dim: bool = True
        activation: Callable[..., Array] = jax.nn.relu
        projection: Linear.Config = Linear.Config(bias=True)
        foreign: kn.foreign.Names = kn.foreign.Names(children={**_LAYERS, "projection": "linear"})

    def setup(self) -> None:
        """Declares the convolutions, and the projection of [channels, bands] to the stream."""
        cfg = self.config
        bands = cfg.num_bands
        for i, conv in enumerate(cfg.convs):
            self.add_child(f"convs[{i}]", conv, input_dim=cfg.channels if i else 1, output_dim=cfg.channels)
            bands = -(-bands // 2) if conv.strides else bands
        self.add_child(
            "projection",
            cfg.projection,
            input_shape=(cfg.channels, bands),
            output_shape=(cfg.output_dim,),
            axes=(None, None, "embed"),
        )

    @kn.nowrap
    def flops_per_row(self, num_frames: int) -> float:
        """Returns forward matmul FLOPs of a row of `num_frames` frames."""
        frames, bands, total = num_frames, self.config.num_bands, 0.0
        for conv in self.convs:
            if conv.config.strides:
                frames, bands = -(-frames // 2), -(-bands // 2)
            total += conv.flops_per_token(1) * frames * bands
        return total + self.projection.flops_per_token(1) * frames

    @kn.nowrap
    def frames_after(self, num_frames: int) -> int:
        """Returns how many frames remain of `num_frames`."""
        for conv in self.convs:
            num_frames = -(-num_frames // 2) if conv.config.strides else num_frames
        return num_frames

    def forward(
        self, features: Float[Array, "B T M"], num_frames: Int[Array, " B"]
    ) -> tuple[Float[Array, "B T2 E"], Int[Array, " B"]]:
        """Returns the stream and how many of its frames are each row's own."""
        cfg, x = self.config, features[..., None]
        for conv in self.convs:
            x = conv(x)
            num_frames = -(-num_frames // 2) if conv.config.strides else num_frames
            real = jnp.arange(x.shape[1])[None] < num_frames[:, None]
            x = jnp.where(real[..., None, None], x, jnp.zeros((), x.dtype))
            x = x if conv.config.depthwise else cfg.activation(x)
        # PyTorch's order: a channel's bands lie side by side.
        x = self.projection(jnp.swapaxes(x, 2, 3))
        return x * math.sqrt(cfg.output_dim) if cfg.scale_by_sqrt_dim else x, num_frames
