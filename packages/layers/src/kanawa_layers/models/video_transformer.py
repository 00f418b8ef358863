"""The video diffusion transformer: patches of frames, positions in three axes, and cross attention to a text (Wan)."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Made, Norm, Sequences, Stack, TextLatentsBatch
from kanawa.errors import ModuleError

from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import UnitLayerNorm
from kanawa_layers.diffusion.conditions import TimeEmbedding
from kanawa_layers.diffusion.denoiser import Denoiser
from kanawa_layers.diffusion.modulation import Modulation, Modulations
from kanawa_layers.diffusion.text_encoder import TextStates, TextWidths
from kanawa_layers.diffusion.video_blocks import SharedModulation, grid_coordinates
from kanawa_layers.feedforward.activations import gelu_tanh
from kanawa_layers.models.mmdit import TextProjection

Sizes = tuple[int, int, int]
#: Of torch's convolution, which is [outputs, inputs, frames, rows, columns].
_CONV_3D = kn.foreign.Names(
    tensors={
        "weight": kn.foreign.Tensor(name="weight", form=kn.foreign.Permuted.Config(order=(4, 3, 0, 1, 2))),
        "bias": "bias",
    }
)


def in_patches(x: Float[Array, "B F H W C"], patch: Sizes, path: str) -> tuple[jax.Array, Sizes]:
    """Returns [B, patches, *patch, C], and how many patches each axis has; raises ModuleError where they don't tile."""
    sizes = x.shape[1:4]
    if any(size % step for size, step in zip(sizes, patch, strict=True)):
        message = f"{path}: videos of {sizes} (frames, rows, columns) can't be cut in patches of {patch}"
        raise ModuleError(message)
    frames, rows, columns = (size // step for size, step in zip(sizes, patch, strict=True))
    split = x.reshape(x.shape[0], frames, patch[0], rows, patch[1], columns, patch[2], x.shape[-1])
    tiles = split.transpose(0, 1, 3, 5, 2, 4, 6, 7)
    return tiles.reshape(x.shape[0], frames * rows * columns, *patch, x.shape[-1]), (frames, rows, columns)


def from_patches(tiles: Float[Array, "B T P Q R C"], counts: Sizes) -> Float[Array, "B F H W C"]:
    """Returns the inverse of `in_patches`."""
    batch, _, *patch, channels = tiles.shape
    split = tiles.reshape(batch, *counts, *patch, channels).transpose(0, 1, 4, 2, 5, 3, 6, 7)
    sizes = (count * step for count, step in zip(counts, patch, strict=True))
    return split.reshape(batch, *sizes, channels)


class VideoTransformer(Denoiser):
    """Latents of videos by the states of a text, `TextStates`: patches through blocks that a time modulates.

    `shape` is frames, rows and columns of the latents that data have; the network takes any that patches tile.
    """

    patches: Linear
    time: TimeEmbedding
    time_vectors: Linear
    text: TextProjection
    stack: Stack
    norm: Norm
    modulation: Modulations
    head: Linear

    class Config(Denoiser.Config):
        PLACEMENT = ("token_multiple",)

        #: Rows of tokens are padded to a multiple of this: kernels tile them.
        token_multiple: kn.Size = 1
        shape: tuple[kn.Size, kn.Size, kn.Size] = kn.REQUIRED
        num_channels: kn.Size = 16
        patch: tuple[kn.Size, kn.Size, kn.Size] = (1, 2, 2)
        text_length: kn.Size = 512
        text_dim: kn.Size = 4096
        patches: Linear.Config = Linear.Config(bias=True, foreign=_CONV_3D)
        time: TimeEmbedding.Config = TimeEmbedding.Config()
        time_vectors: Linear.Config = Linear.Config(bias=True)
        text: TextProjection.Config = TextProjection.Config(activation=gelu_tanh)
        stack: Stack.Config = kn.REQUIRED
        norm: Norm.Config = UnitLayerNorm.Config()
        modulation: Modulations.Config = SharedModulation.Config()
        head: Linear.Config = Linear.Config(bias=True, init_scale=0.0)

        def check(self) -> list[str]:
            """Returns that patches don't tile the video."""
            if all(size % step == 0 for size, step in zip(self.shape, self.patch, strict=True)):
                return []
            return [f"shape {self.shape} is not a multiple of patch {self.patch} in each axis"]

    @classmethod
    def batch_of(cls, cfg: Any) -> type:
        """Returns latents with the states of texts."""
        del cfg
        return TextLatentsBatch

    @classmethod
    def made_by(cls, cfg: Any) -> Made:
        """Returns the latents of a video: frames, rows, columns and channels."""
        return Made((*cfg.shape, cfg.num_channels), is_latent=True, reads_states=True)

    @classmethod
    def text_widths(cls, cfg: Any) -> TextWidths:
        """Returns that of the states; no vector is read."""
        return TextWidths(cfg.text_dim, None)

    def setup(self) -> None:
        """Declares the parts."""
        cfg = self.config
        width, patch = cfg.input_dim, (*cfg.patch, cfg.num_channels)
        axes = (None,) * 4
        self.add_child("patches", cfg.patches, input_shape=patch, output_shape=(width,), axes=(*axes, "embed"))
        self.add_child("time", cfg.time, output_dim=width)
        vectors: Any = {"input_shape": (width,), "output_shape": (6, width), "axes": ("embed", None, None)}
        self.add_child("time_vectors", cfg.time_vectors, **vectors)
        self.add_child("text", cfg.text, input_dim=cfg.text_dim, output_dim=width)
        for name in ("stack", "norm"):
            self.add_child(name, getattr(cfg, name), input_dim=width)
        self.add_child("modulation", cfg.modulation, input_dim=width, count=2)
        self.add_child("head", cfg.head, input_shape=(width,), output_shape=patch, axes=("embed", *axes))

    @kn.nowrap
    def wish_of(self, batch: Any) -> TextStates:
        """Returns the states of texts."""
        return TextStates(batch.states, None)

    @kn.nowrap
    def no_wish(self, wish: TextStates) -> TextStates:
        """Returns zeros."""
        return wish.of_nothing()

    def forward(
        self, x: Float[Array, "B F H W C"], times: Float[Array, " B"], wish: TextStates
    ) -> Float[Array, "B F H W C"]:
        """Returns fp32 outputs."""
        compute, cfg = kn.current_plan().precision.compute, self.config
        tiles, counts = in_patches(x.astype(compute), cfg.patch, self.path)
        tokens = kn.constrain(self.patches(tiles), ("batch", "length", "embed"))
        time = self.time(times)
        vectors = self.time_vectors(jax.nn.silu(time)).reshape(time.shape[0], -1)
        sequences = Sequences(
            condition=vectors,
            memory=self.text(wish.states.astype(compute)),
            memory_segment_ids=wish.segment_ids,
            coordinates=grid_coordinates(*counts),
        )
        length = tokens.shape[1]
        tokens, sequences = self._padded(tokens, sequences)
        tokens, _ = self.stack(kn.constrain(tokens, ("batch", "length", "embed")), sequences)
        tokens = tokens[:, :length]
        shift, scale = self.modulation(time)
        out = self.head(Modulation(shift, scale, scale).read(self.norm(tokens)))
        return from_patches(out, counts).astype(jnp.float32)

    def _padded(self, tokens: Float[Array, "B T E"], sequences: Sequences) -> tuple[jax.Array, Sequences]:
        """Returns rows of a multiple of `token_multiple`, and what marks the padding as such; most rows need none."""
        rows, length, _ = tokens.shape
        more = -length % self.config.token_multiple
        assert sequences.memory is not None and sequences.coordinates is not None
        if not more:
            return tokens, sequences
        ends = [(0, 0), (0, more), (0, 0)]
        real = jnp.broadcast_to(jnp.arange(length + more)[None] < length, (rows, length + more)).astype(jnp.int32)
        texts = sequences.memory_segment_ids
        return jnp.pad(tokens, ends), sequences._replace(
            segment_ids=real,
            memory_segment_ids=jnp.ones(sequences.memory.shape[:2], jnp.int32) if texts is None else texts,
            coordinates=jnp.pad(sequences.coordinates, ends),
        )

    @kn.nowrap
    def flops_per_picture(self) -> float:
        """Returns those of all patches of a video, each of which sees all."""
        cfg = self.config
        tokens = math.prod(cfg.shape) // math.prod(cfg.patch)
        stack: Any = self.stack
        total = stack.config.num_layers * stack.layer.flops(tokens, cfg.text_length)
        total += (self.patches.flops_per_token(1.0) + self.head.flops_per_token(1.0)) * tokens
        total += self.text.flops_per_token(1.0) * cfg.text_length
        return float(total + self.time.flops_per_token(1.0) + self.time_vectors.flops_per_token(1.0))
