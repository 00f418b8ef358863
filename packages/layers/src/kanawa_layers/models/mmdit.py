"""The diffusion transformer of texts: text and picture are two streams that attend together (MMDiT, 2403.03206)."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float
from kanawa.contracts import Made, Sequences, Stack, TextLatentsBatch
from kanawa.errors import ModuleError

from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.basic.patches import PatchEmbedding
from kanawa_layers.diffusion.conditions import TimeEmbedding
from kanawa_layers.diffusion.denoiser import Denoiser
from kanawa_layers.diffusion.text_encoder import TextStates, TextWidths
from kanawa_layers.models.dit import PatchHead


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
    """Latents by texts: a wish is what an encoder made of them, `TextStates` with a vector a text.

    The condition that modulates is the sum of the time's embedding and that of the pooled vector.
    """

    patches: PatchEmbedding
    positions: StoredGrid
    time: TimeEmbedding
    pooled: TextProjection
    context: Linear
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
        stack: Stack.Config = kn.REQUIRED
        head: PatchHead.Config = PatchHead.Config()

        def check(self) -> list[str]:
            """Returns that patches don't tile the picture."""
            if self.image_size % self.patches.patch_size == 0:
                return []
            return [f"image_size ({self.image_size}) is not a multiple of patch_size ({self.patches.patch_size})"]

    @classmethod
    def batch_of(cls, cfg: "MMDiT.Config") -> type:
        """Returns pairs of latents and states of texts."""
        del cfg
        return TextLatentsBatch

    @classmethod
    def text_widths(cls, cfg: "MMDiT.Config") -> TextWidths:
        """Returns those of the states and of the vectors."""
        return TextWidths(cfg.text_dim, cfg.pooled_dim)

    @classmethod
    def made_by(cls, cfg: "MMDiT.Config") -> Made:
        """Returns square pictures."""
        shape = (cfg.image_size, cfg.image_size, cfg.patches.num_channels)
        return Made(shape, is_latent=cfg.is_latent, reads_states=True)

    def setup(self) -> None:
        """Declares the parts."""
        cfg = self.config
        width, patch = cfg.input_dim, cfg.patches
        self.add_child("patches", patch, output_dim=width)
        for name in ("positions", "time"):
            self.add_child(name, getattr(cfg, name), output_dim=width)
        self.add_child("pooled", cfg.pooled, input_dim=cfg.pooled_dim, output_dim=width)
        add_linear(self, "context", cfg.text_dim, width, (None, "embed"))
        self.add_child("stack", cfg.stack, input_dim=width)
        sizes: Any = {"patch_size": patch.patch_size, "num_channels": patch.num_channels}
        self.add_child("head", cfg.head, input_dim=width, **sizes)

    @kn.nowrap
    def wish_of(self, batch: Any) -> TextStates:
        """Returns the states and the vectors."""
        return TextStates(batch.states, batch.pooled)

    @kn.nowrap
    def no_wish(self, wish: TextStates) -> TextStates:
        """Returns zeros."""
        return wish.of_nothing()

    def forward(
        self, x: Float[Array, "B H W C"], times: Float[Array, " B"], wish: TextStates
    ) -> Float[Array, "B H W C"]:
        """Returns fp32 outputs for pictures of any size that patches tile; raises ModuleError without vectors."""
        compute, size = kn.current_plan().precision.compute, self.config.patches.patch_size
        if wish.pooled is None:
            message = f"{self.path} is modulated by one vector a text, and TextStates.pooled is None"
            raise ModuleError(message)
        states, pooled = wish.states.astype(compute), wish.pooled.astype(compute)
        rows, columns = x.shape[1] // size, x.shape[2] // size
        picture = self.patches(x.astype(compute)) + self.positions(rows, columns)[None]
        condition, text = self.time(times) + self.pooled(pooled), self.context(states)
        tokens = kn.constrain(jnp.concatenate([text, picture], axis=1), ("batch", "length", "embed"))
        sequences = Sequences(condition=condition, memory=text, memory_segment_ids=wish.segment_ids)
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
        return float(total)
