"""How Whisper's encoder reads its spectrogram: two convolutions, and positions that are stored, not trained."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float, Int
from kanawa.errors import ModuleError

from kanawa_layers.basic.conv import Conv
from kanawa_layers.feedforward.activations import gelu_exact
from kanawa_layers.positions.absolute import AbsolutePositions

#: Ours is [window, inputs, outputs].
CONV_1D = kn.foreign.Names(
    tensors={
        "weight": kn.foreign.Tensor(name="weight", form=kn.foreign.Permuted.Config(order=(2, 1, 0))),
        "bias": "bias",
    }
)


class ConvStem(kn.Module):
    """Two convolutions over three frames, each with an activation; the second halves the frames (Whisper)."""

    first: Conv
    second: Conv

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        output_dim: kn.Size = kn.FROM_PARENT
        activation: Callable[..., Array] = gelu_exact
        # Not "same", which for an even number of frames would pad the end alone.
        first: Conv.Config = Conv.Config(window=(3,), padding=((1, 1),), foreign=CONV_1D, axes=(None, "embed"))
        second: Conv.Config = Conv.Config(window=(3,), strides=(2,), padding=((1, 1),), foreign=CONV_1D)
        foreign: kn.foreign.Names = kn.foreign.Names(children={"first": "conv1", "second": "conv2"})

    def setup(self) -> None:
        """Declares both convolutions."""
        cfg = self.config
        self.add_child("first", cfg.first, input_dim=cfg.input_dim, output_dim=cfg.output_dim)
        self.add_child("second", cfg.second, input_dim=cfg.output_dim, output_dim=cfg.output_dim)

    @kn.nowrap
    def flops_per_row(self, num_frames: int) -> float:
        """Returns forward matmul FLOPs of a row of `num_frames` frames."""
        return self.first.flops_per_token(1) * num_frames + self.second.flops_per_token(1) * -(-num_frames // 2)

    def forward(self, features: Float[Array, "B T M"]) -> Float[Array, "B T2 E"]:
        """Returns half as many frames, rounded up."""
        activation = self.config.activation
        halved: jax.Array = activation(self.second(activation(self.first(features))))
        return halved


class StoredSinusoids(AbsolutePositions):
    """A table of sines, then cosines, which checkpoints hold and training leaves alone (Whisper's encoder)."""

    class Config(AbsolutePositions.Config):
        max_length: kn.Size = kn.REQUIRED
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"weight": "weight"})

    def setup(self) -> None:
        """Declares the table [positions, embed] as state."""
        cfg = self.config
        self.add_state("weight", (cfg.max_length, cfg.output_dim), axes=(None, "embed"), init=_sinusoids)

    def forward(self, positions: Int[Array, "B T"]) -> Float[Array, "B T E"]:
        """Returns the rows; raises ModuleError for a row of more than `max_length` frames."""
        limit = self.config.max_length
        if positions.shape[-1] > limit:
            message = f"{self.path}: {positions.shape[-1]} frames in a row, but there are positions for {limit}"
            raise ModuleError(message)
        table = self.state("weight").astype(kn.current_plan().precision.compute)
        return jnp.take(table, positions, axis=0, mode="clip")


def _sinusoids(key: jax.Array, shape: Sequence[int], dtype: Any, fan_in: int, fan_out: int) -> jax.Array:
    """Returns sin, then cos, of position / 10,000^(i / (channels / 2 - 1))."""
    del key, fan_in, fan_out
    length, channels = shape
    rates = np.exp(-np.log(10_000.0) / max(channels // 2 - 1, 1) * np.arange(channels // 2))
    angles = np.arange(length)[:, None] * rates[None]
    return jnp.asarray(np.concatenate([np.sin(angles), np.cos(angles)], axis=1), dtype)
