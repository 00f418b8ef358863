"""The diffusion transformer of texts: text and picture are two streams that attend together (MMDiT, 2403.03206)."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float, Int
from kanawa.contracts import ImageTextBatch, Made, Norm, Sequences, Stack, TextLatentsBatch
from kanawa.errors import ModuleError

from kanawa_layers.basic.embedding import Embedding
from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.basic.norms import LayerNorm
from kanawa_layers.basic.patches import PatchEmbedding
from kanawa_layers.diffusion.conditions import TimeEmbedding
from kanawa_layers.diffusion.denoiser import Denoiser
from kanawa_layers.models.dit import PatchHead
from kanawa_layers.positions.absolute import AbsolutePositions, LearnedPositions


class StoredGrid(kn.Module):
    """Sines and cosines of a grid of `max_size` squared places, of which pictures take the middle; files hold it.

    Places are counted in units of `base_size` / `max_size`, so that usual pictures have the usual positions.
    """

    class Config(kn.Module.Config):
        output_dim: kn.Size = kn.FROM_PARENT
        max_size: kn.Size = 96
        base_size: kn.Size = 64
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"weight": kn.foreign.Tensor(name="pos_embed", form=kn.foreign.Permuted.Config(order=(-1, 0, 1)))}
        )

    def setup(self) -> None:
        """Declares the table [places, embed] as state."""
        cfg = self.config
        scale = cfg.base_size / cfg.max_size

        def waves(key: jax.Array, shape: Sequence[int], dtype: Any, fan_in: int, fan_out: int) -> jax.Array:
            del key, fan_in, fan_out
            quarter = shape[1] // 4
            frequencies = 10_000.0 ** -(np.arange(quarter) / quarter)
            grid = np.meshgrid(np.arange(cfg.max_size) * scale, np.arange(cfg.max_size) * scale)
            angles = [np.outer(places.reshape(-1), frequencies) for places in grid]
            return jnp.asarray(np.concatenate([w(a) for a in angles for w in (np.sin, np.cos)], axis=1), dtype)

        self.add_state("weight", (cfg.max_size**2, cfg.output_dim), axes=(None, "embed"), init=waves)

    def forward(self, rows: int, columns: int) -> Float[Array, "T E"]:
        """Returns those of the middle; raises ModuleError for a picture of more patches."""
        size = self.config.max_size
        if rows > size or columns > size:
            message = f"{self.path}: {rows} x {columns} patches, and there are positions for {size} x {size}"
            raise ModuleError(message)
        top, left = (size - rows) // 2, (size - columns) // 2
        table = self.state("weight").reshape(size, size, -1)[top : top + rows, left : left + columns]
        return table.reshape(rows * columns, -1).astype(kn.current_plan().precision.compute)


class TextReader(kn.Module):
    """A small encoder of texts that learns with the picture: states, and their mean; id 0 is padding."""

    embedding: Embedding
    positions: AbsolutePositions
    stack: Stack
    norm: Norm

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.REQUIRED
        vocab_size: kn.Size = kn.REQUIRED
        embedding: Embedding.Config = Embedding.Config()
        positions: AbsolutePositions.Config = LearnedPositions.Config(max_length=64)
        stack: Stack.Config = kn.REQUIRED
        norm: Norm.Config = LayerNorm.Config()

    def setup(self) -> None:
        """Declares the parts."""
        cfg = self.config
        self.add_child("embedding", cfg.embedding, vocab_size=cfg.vocab_size, output_dim=cfg.input_dim)
        self.add_child("positions", cfg.positions, output_dim=cfg.input_dim)
        for name in ("stack", "norm"):
            self.add_child(name, getattr(cfg, name), input_dim=cfg.input_dim)

    def forward(self, ids: Int[Array, "B T"]) -> tuple[Float[Array, "B T D"], Float[Array, "B D"], Int[Array, "B T"]]:
        """Returns states, their mean, and segments: 0 is padding. A text without tokens is its first place alone."""
        segments = ((ids > 0) | (jnp.arange(ids.shape[1])[None] == 0)).astype(jnp.int32)
        x = self.embedding(ids) + self.positions(jnp.broadcast_to(jnp.arange(ids.shape[1])[None], ids.shape))
        x, _ = self.stack(x, Sequences(segment_ids=segments))
        x = self.norm(x)
        weights = segments.astype(jnp.float32)[..., None]
        pooled = jnp.sum(x.astype(jnp.float32) * weights, axis=1) / jnp.sum(weights, axis=1)
        return x, pooled.astype(x.dtype), segments


class TextProjection(kn.Module):
    """down(activation(up(x))) of a text's pooled vector or of its states, to another width."""

    up: Linear
    down: Linear

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        output_dim: kn.Size = kn.FROM_PARENT
        activation: Callable[..., Array] = jax.nn.silu
        up: Linear.Config = Linear.Config(bias=True)
        down: Linear.Config = Linear.Config(bias=True)
        foreign: kn.foreign.Names = kn.foreign.Names(children={"up": "linear_1", "down": "linear_2"})

    def setup(self) -> None:
        """Declares both projections."""
        cfg = self.config
        add_linear(self, "up", cfg.input_dim, cfg.output_dim, (None, "embed"))
        add_linear(self, "down", cfg.output_dim, cfg.output_dim, ("embed", None))

    def forward(self, x: Float[Array, "... P"]) -> Float[Array, "... E"]:
        """Returns the vectors."""
        return self.down(self.config.activation(self.up(x)))


class MMDiT(Denoiser):
    """Latents by texts. With a `text` reader a wish is ids [B, T]; without, a text's states [B, T, D] and one vector.

    The condition that modulates is the sum of the time's embedding and that of the pooled vector.
    """

    patches: PatchEmbedding
    positions: StoredGrid
    time: TimeEmbedding
    pooled: TextProjection
    context: Linear
    text: TextReader | None
    stack: Stack
    head: PatchHead

    class Config(Denoiser.Config):
        image_size: kn.Size = kn.REQUIRED
        is_latent: bool = True
        text_length: kn.Size = 333
        text_dim: kn.Size = 4096
        pooled_dim: kn.Size = 2048
        patches: PatchEmbedding.Config = PatchEmbedding.Config(patch_size=2)
        positions: StoredGrid.Config = StoredGrid.Config()
        time: TimeEmbedding.Config = TimeEmbedding.Config()
        pooled: TextProjection.Config = TextProjection.Config()
        context: Linear.Config = Linear.Config(bias=True)
        text: TextReader.Config | None = None
        stack: Stack.Config = kn.REQUIRED
        head: PatchHead.Config = PatchHead.Config()

        def check(self) -> list[str]:
            """Returns that patches don't tile the picture, or a reader's width isn't the text's."""
            problems = []
            if self.image_size % self.patches.patch_size:
                size = self.patches.patch_size
                problems.append(f"image_size ({self.image_size}) is not a multiple of patch_size ({size})")
            if self.text is not None and {self.text.input_dim} != {self.text_dim, self.pooled_dim}:
                widths = f"text_dim ({self.text_dim}) and pooled_dim ({self.pooled_dim})"
                problems.append(f"text.input_dim is {self.text.input_dim}, expected that of {widths}")
            return problems

    @classmethod
    def batch_of(cls, cfg: "MMDiT.Config") -> type:
        """Returns pairs of pictures and texts, or of latents and states of texts."""
        return TextLatentsBatch if cfg.text is None else ImageTextBatch

    @classmethod
    def made_by(cls, cfg: "MMDiT.Config") -> Made:
        """Returns square pictures; ids of texts are asked for where there is a reader."""
        shape = (cfg.image_size, cfg.image_size, cfg.patches.num_channels)
        return Made(shape, is_latent=cfg.is_latent, prompt_length=None if cfg.text is None else cfg.text_length)

    def setup(self) -> None:
        """Declares the parts."""
        cfg = self.config
        width, patch = cfg.input_dim, cfg.patches
        self.add_child("patches", patch, output_dim=width)
        for name in ("positions", "time"):
            self.add_child(name, getattr(cfg, name), output_dim=width)
        self.add_child("pooled", cfg.pooled, input_dim=cfg.pooled_dim, output_dim=width)
        add_linear(self, "context", cfg.text_dim, width, (None, "embed"))
        self.add_child("text", cfg.text)
        self.add_child("stack", cfg.stack, input_dim=width)
        sizes: Any = {"patch_size": patch.patch_size, "num_channels": patch.num_channels}
        self.add_child("head", cfg.head, input_dim=width, **sizes)

    @kn.nowrap
    def wish_of(self, batch: Any) -> Any:
        """Returns ids, 0 past a text's end; or the states and the pooled vectors."""
        if isinstance(batch, ImageTextBatch):
            return jnp.where(batch.segment_ids > 0, batch.input_ids, 0)
        return batch.states, batch.pooled

    @kn.nowrap
    def no_wish(self, wish: Any) -> Any:
        """Returns zeros: of ids, the empty text."""
        return jax.tree.map(jnp.zeros_like, wish)

    def forward(self, x: Float[Array, "B H W C"], times: Float[Array, " B"], wish: Any) -> Float[Array, "B H W C"]:
        """Returns fp32 outputs for pictures of any size that patches tile."""
        compute, size = kn.current_plan().precision.compute, self.config.patches.patch_size
        segments = None
        if self.text is None:
            states, pooled = (part.astype(compute) for part in wish)
        else:
            states, pooled, segments = self.text(wish)
        rows, columns = x.shape[1] // size, x.shape[2] // size
        picture = self.patches(x.astype(compute)) + self.positions(rows, columns)[None]
        condition, text = self.time(times) + self.pooled(pooled), self.context(states)
        tokens = kn.constrain(jnp.concatenate([text, picture], axis=1), ("batch", "length", "embed"))
        sequences = Sequences(condition=condition, memory=text, memory_segment_ids=segments)
        tokens, _ = self.stack(tokens, sequences)
        return self.head(tokens[:, text.shape[1] :], condition, rows, columns).astype(jnp.float32)

    @kn.nowrap
    def flops_per_picture(self) -> float:
        """Returns those of both streams, each token of which sees all."""
        cfg = self.config
        tokens, texts = (cfg.image_size // cfg.patches.patch_size) ** 2, cfg.text_length
        stacks: Any = getattr(self.stack, "stacks", (self.stack,))
        total = sum(part.config.num_layers * part.layer.flops(tokens, texts) for part in stacks)
        total += sum(part.flops_per_token(tokens) for part in (self.patches, self.head)) * tokens
        total += self.context.flops_per_token(1.0) * texts
        total += sum(part.flops_per_token(1.0) for part in (self.time, self.pooled))
        reader = 0.0 if self.text is None else self.text.stack.flops_per_token(texts) * texts
        return float(total + reader)
