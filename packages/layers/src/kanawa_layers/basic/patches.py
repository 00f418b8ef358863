"""Images to tokens: one projection of each square patch (Dosovitskiy et al. 2020, arXiv:2010.11929)."""

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.errors import ModuleError

from kanawa_layers.basic.linear import Linear


class PatchEmbedding(kn.Module):
    """[batch, height, width, channels] to [batch, patches, embed], rows of patches one after another.

    Equal to a convolution whose stride is its width, computed as one matmul.
    """

    projection: Linear

    class Config(kn.Module.Config):
        output_dim: kn.Size = kn.FROM_PARENT
        patch_size: kn.Size = 16
        num_channels: kn.Size = 3
        projection: Linear.Config = Linear.Config(
            bias=True,
            foreign=kn.foreign.Names(
                tensors={
                    "weight": kn.foreign.Tensor(name="weight", form=kn.foreign.Permuted.Config(order=(3, 2, 0, 1))),
                    "bias": "bias",
                }
            ),
        )
        foreign: kn.foreign.Names = kn.foreign.Names(children={"projection": "projection"})

    def setup(self) -> None:
        """Declares the projection, [patch, patch, channels, embed]."""
        cfg = self.config
        self.add_child(
            "projection",
            cfg.projection,
            input_shape=(cfg.patch_size, cfg.patch_size, cfg.num_channels),
            output_shape=(cfg.output_dim,),
            axes=(None, None, None, "embed"),
        )

    def forward(self, images: Float[Array, "B H W C"]) -> Float[Array, "B T E"]:
        """Returns a token for each patch; raises ModuleError where patches don't tile the image."""
        return self.projection(tiles_of(images, self.config.patch_size, self.config.num_channels, self.path))


class FramePatchEmbedding(kn.Module):
    """As PatchEmbedding, of a film whose `num_frames` frames are all the image (Qwen2-VL, arXiv:2409.12191)."""

    projection: Linear

    class Config(kn.Module.Config):
        output_dim: kn.Size = kn.FROM_PARENT
        patch_size: kn.Size = 16
        num_channels: kn.Size = 3
        num_frames: kn.Size = 2
        projection: Linear.Config = Linear.Config(
            bias=True,
            foreign=kn.foreign.Names(
                tensors={
                    "weight": kn.foreign.Tensor(name="weight", form=kn.foreign.Permuted.Config(order=(4, 3, 0, 1, 2))),
                    "bias": "bias",
                }
            ),
        )
        foreign: kn.foreign.Names = kn.foreign.Names(children={"projection": "proj"})

    def setup(self) -> None:
        """Declares the projection, [frames, patch, patch, channels, embed]."""
        cfg = self.config
        self.add_child(
            "projection",
            cfg.projection,
            input_shape=(cfg.num_frames, cfg.patch_size, cfg.patch_size, cfg.num_channels),
            output_shape=(cfg.output_dim,),
            axes=(None, None, None, None, "embed"),
        )

    def forward(self, images: Float[Array, "B H W C"]) -> Float[Array, "B T E"]:
        """Returns a token for each patch; raises ModuleError where patches don't tile the image."""
        cfg = self.config
        tiles = tiles_of(images, cfg.patch_size, cfg.num_channels, self.path)[:, :, None]
        return self.projection(jnp.broadcast_to(tiles, (*tiles.shape[:2], cfg.num_frames, *tiles.shape[3:])))


def tiles_of(images: Float[Array, "B H W C"], size: int, num_channels: int, path: str) -> Float[Array, "B T P P C"]:
    """Returns the patches, rows of them one after another; raises ModuleError where they don't tile the image."""
    batch, height, width, channels = images.shape
    if height % size or width % size or channels != num_channels:
        message = (
            f"{path}: images of {height} x {width} x {channels} can't be cut in patches of "
            f"{size} x {size} x {num_channels}"
        )
        raise ModuleError(message)
    rows, columns = height // size, width // size
    # [B, rows, P, columns, P, C] -> [B, rows, columns, P, P, C]: pixels of a patch in the order of its weight.
    tiles = images.reshape(batch, rows, size, columns, size, channels).transpose(0, 1, 3, 2, 4, 5)
    return tiles.reshape(batch, rows * columns, size, size, channels)
