"""The diffusion transformer of labels: DiT (Peebles and Xie 2022, arXiv:2212.09748)."""

from typing import Any

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.contracts import Made, Norm, Sequences, Stack
from kanawa.errors import ModuleError

from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import UnitLayerNorm
from kanawa_layers.basic.patches import PatchEmbedding
from kanawa_layers.diffusion.conditions import LabelEmbedding, TimeEmbedding
from kanawa_layers.diffusion.denoiser import Denoiser
from kanawa_layers.diffusion.grid_positions import GridPositions, SinusoidalGrid
from kanawa_layers.diffusion.modulation import AdaptiveZero, Modulation, Modulations


class PatchHead(kn.Module):
    """The last stream to pixels: a modulated norm, a projection of each patch, and patches to their places."""

    norm: Norm
    modulation: Modulations | None
    projection: Linear

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        patch_size: kn.Size = kn.FROM_PARENT
        num_channels: kn.Size = kn.FROM_PARENT
        norm: Norm.Config = UnitLayerNorm.Config()
        modulation: Modulations.Config | None = AdaptiveZero.Config()
        projection: Linear.Config = Linear.Config(bias=True, init_scale=0.0)
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={"norm": "norm_out", "modulation": "", "projection": "proj_out_2"}
        )

    def setup(self) -> None:
        """Declares the parts; the modulation makes a shift and a scale."""
        cfg = self.config
        self.add_child("norm", cfg.norm, input_dim=cfg.input_dim)
        self.add_child("modulation", cfg.modulation, input_dim=cfg.input_dim, count=2)
        self.add_child(
            "projection",
            cfg.projection,
            input_shape=(cfg.input_dim,),
            output_shape=(cfg.patch_size, cfg.patch_size, cfg.num_channels),
            axes=("embed", None, None, None),
        )

    def forward(
        self, x: Float[Array, "B T E"], condition: Float[Array, "B E"], rows: int, columns: int
    ) -> Float[Array, "B H W C"]:
        """Returns the picture of rows * columns patches."""
        x = self.norm(x)
        if self.modulation is not None:
            shift, scale = self.modulation(condition)
            x = Modulation(shift, scale, scale).read(x)
        size, channels = self.config.patch_size, self.config.num_channels
        # [B, rows, columns, P, P, C] -> [B, rows, P, columns, P, C].
        tiles = self.projection(x).reshape(x.shape[0], rows, columns, size, size, channels).transpose(0, 1, 3, 2, 4, 5)
        return tiles.reshape(x.shape[0], rows * size, columns * size, channels)


class DiT(Denoiser):
    """Patches with positions through blocks that the sum of a time's and a label's embedding modulates.

    Without labels the time is the whole condition. `learns_variance` outputs twice the channels, as released weights
    do; the second half is the variance, which no loss and no sampler here reads.
    """

    patches: PatchEmbedding
    positions: GridPositions
    time: TimeEmbedding
    label: LabelEmbedding | None
    stack: Stack
    head: PatchHead

    class Config(Denoiser.Config):
        image_size: kn.Size = kn.REQUIRED
        learns_variance: bool = False
        is_latent: bool = False
        patches: PatchEmbedding.Config = PatchEmbedding.Config(patch_size=2)
        positions: GridPositions.Config = SinusoidalGrid.Config()
        time: TimeEmbedding.Config = TimeEmbedding.Config()
        label: LabelEmbedding.Config = LabelEmbedding.Config()
        stack: Stack.Config = kn.REQUIRED
        head: PatchHead.Config = PatchHead.Config()

        def check(self) -> list[str]:
            """Returns that patches don't tile the picture."""
            if self.image_size % self.patches.patch_size == 0:
                return []
            return [f"image_size ({self.image_size}) is not a multiple of patch_size ({self.patches.patch_size})"]

    @classmethod
    def made_by(cls, cfg: "DiT.Config") -> Made:
        """Returns square pictures."""
        shape = (cfg.image_size, cfg.image_size, cfg.patches.num_channels)
        return Made(shape, is_latent=cfg.is_latent)

    def setup(self) -> None:
        """Declares the parts."""
        cfg = self.config
        patch = cfg.patches
        self.add_child("patches", patch, output_dim=cfg.input_dim)
        for name in ("positions", "time"):
            self.add_child(name, getattr(cfg, name), output_dim=cfg.input_dim)
        labels: Any = {"num_labels": cfg.num_labels, "output_dim": cfg.input_dim}
        self.add_child("label", cfg.label if cfg.num_labels else None, **labels)
        # Files of other libraries have both in every block.
        for name in ("time", "label") if cfg.num_labels else ("time",):
            self.share(name, getattr(self, name))
        self.add_child("stack", cfg.stack, input_dim=cfg.input_dim)
        channels = patch.num_channels * (2 if cfg.learns_variance else 1)
        sizes: Any = {"patch_size": patch.patch_size, "num_channels": channels}
        self.add_child("head", cfg.head, input_dim=cfg.input_dim, **sizes)

    @kn.nowrap
    def no_wish(self, wish: Int[Array, " B"]) -> Int[Array, " B"]:
        """Returns the id of no label, a row each."""
        return jnp.full_like(wish, self.config.num_labels)

    def forward(
        self, x: Float[Array, "B H W C"], times: Float[Array, " B"], wish: Int[Array, " B"] | None
    ) -> Float[Array, "B H W D"]:
        """Returns fp32 outputs for pictures of any size that patches tile."""
        size = self.config.patches.patch_size
        rows, columns = x.shape[1] // size, x.shape[2] // size
        tokens = self.patches(x.astype(kn.current_plan().precision.compute)) + self.positions(rows, columns)[None]
        condition = self.time(times)
        if self.label is not None:
            if wish is None:
                message = f"{self.path} makes pictures of {self.config.num_labels} labels, and was asked without any"
                raise ModuleError(message)
            condition = condition + self.label(wish)
        tokens = kn.constrain(tokens, ("batch", "length", "embed"))
        tokens, _ = self.stack(tokens, Sequences(condition=condition))
        return self.head(tokens, condition, rows, columns).astype(jnp.float32)

    @kn.nowrap
    def flops_per_picture(self) -> float:
        """Returns those of all patches, each of which sees all, and of the condition once."""
        cfg = self.config
        tokens = (cfg.image_size // cfg.patches.patch_size) ** 2
        parts = (self.patches, self.stack, self.head)
        each = sum(part.flops_per_token(tokens) for part in parts)
        return float(each * tokens + self.time.flops_per_token(1.0))
