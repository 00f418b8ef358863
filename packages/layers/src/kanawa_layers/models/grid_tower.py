"""A tower for pictures of any size: positions interpolated to their grid, and rows and columns in the attention."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float, Int, Num
from kanawa.contracts import Sequences, Stack

from kanawa_layers.basic.patches import FramePatchEmbedding
from kanawa_layers.basic.pixels import PixelNorm
from kanawa_layers.models.vision import PictureTower, refuse_grids


class InterpolatedPositions(kn.Module):
    """Learned vectors of a `side` x `side` grid, interpolated bilinearly to a picture's; corners meet corners."""

    class Config(kn.Module.Config):
        output_dim: kn.Size = kn.FROM_PARENT
        side: kn.Size = 48
        init_stddev: kn.NonNegative = 0.02
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"weight": "weight"})

    def setup(self) -> None:
        """Declares the table, [side * side, embed]."""
        cfg = self.config
        shape, init = (cfg.side**2, cfg.output_dim), kn.normal(cfg.init_stddev)
        self.add_param("weight", shape, axes=(None, "embed"), init=init, fan_in_axes=(1,), fan_out_axes=(0,))

    def forward(self, rows: int, columns: int) -> Float[Array, "T E"]:
        """Returns a vector for each patch, in fp32, rows of them one after another."""
        side = self.config.side
        table = self.param("weight", jnp.float32).reshape(side, side, -1)
        down, across = (jnp.asarray(_hats(count, side)) for count in (rows, columns))
        return jnp.einsum("ry,cx,yxe->rce", down, across, table, precision="highest").reshape(rows * columns, -1)


def _hats(count: int, side: int) -> np.ndarray:
    """Returns the weights of `side` places at each of `count` places from the first to the last, fp32."""
    at = np.arange(count, dtype=np.float32) * np.float32(side - 1) / np.float32(max(count - 1, 1))
    weights: np.ndarray = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(side, dtype=np.float32)[None]))
    return weights.astype(np.float32)


class GridTower(PictureTower):
    """Qwen3-VL's tower (arXiv:2511.21631): layers know a patch's row and column by `Sequences.coordinates`.

    Its pictures have any sides that patches tile; all of a batch have one. `picture_size` (height, width) is what data
    are brought to.
    """

    pixels: PixelNorm
    patches: FramePatchEmbedding
    positions: InterpolatedPositions
    stack: Stack

    class Config(PictureTower.Config):
        picture_size: tuple[kn.Size, kn.Size] = (512, 512)
        pixels: PixelNorm.Config = PixelNorm.Config()
        patches: FramePatchEmbedding.Config = FramePatchEmbedding.Config()
        positions: InterpolatedPositions.Config = InterpolatedPositions.Config()
        stack: Stack.Config = kn.REQUIRED

        def check(self) -> list[str]:
            """Returns that patches don't tile pictures."""
            side = self.patches.patch_size
            if not any(length % side for length in self.picture_size):
                return []
            return [f"picture_size is {self.picture_size}, expected multiples of patches.patch_size ({side})"]

    @classmethod
    def image_shape(cls, cfg: Any) -> Mapping[str, tuple[int, ...]]:
        """Returns that of `picture_size`."""
        return {"images": (*cfg.picture_size, cfg.patches.num_channels)}

    @classmethod
    def patch_size(cls, cfg: Any) -> int:
        """Returns that of the patches."""
        return int(cfg.patches.patch_size)

    def setup(self) -> None:
        """Declares the parts."""
        cfg = self.config
        self.add_child("pixels", cfg.pixels)
        self.add_child("patches", cfg.patches, output_dim=cfg.input_dim)
        self.add_child("positions", cfg.positions, output_dim=cfg.input_dim)
        self.add_child("stack", cfg.stack, input_dim=cfg.input_dim)

    def forward(self, images: Num[Array, "B H W C"], grids: Int[Array, "B 2"] | None = None) -> Float[Array, "B T F"]:
        """Returns what the stack makes of the patches; raises ModuleError for `grids`."""
        refuse_grids(self, grids)
        x = self.patches(self.pixels(images))
        rows, columns = (length // self.config.patches.patch_size for length in images.shape[1:3])
        x = x + self.positions(rows, columns)[None].astype(x.dtype)
        at = jnp.stack(jnp.meshgrid(jnp.arange(rows), jnp.arange(columns), indexing="ij"), axis=-1)
        coordinates = jnp.broadcast_to(at.reshape(1, rows * columns, 2), (x.shape[0], rows * columns, 2))
        sequences = Sequences(coordinates=coordinates.astype(jnp.int32))
        return self.stack(kn.constrain(x, ("batch", "length", "embed")), sequences)[0]

    @kn.nowrap
    def flops_per_image(self, shape: tuple[int, ...]) -> float:
        """Returns forward matmul FLOPs of an image [height, width, channels], each patch seeing all."""
        side = self.config.patches.patch_size
        patches = (shape[0] // side) * (shape[1] // side)
        return float((self.patches.flops_per_token(patches) + self.stack.flops_per_token(patches)) * patches)
