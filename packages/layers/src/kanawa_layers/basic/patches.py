"""Images to tokens: one projection of each square patch (Dosovitskiy et al. 2020, arXiv:2010.11929)."""

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
        size = self.config.patch_size
        batch, height, width, channels = images.shape
        if height % size or width % size or channels != self.config.num_channels:
            message = (
                f"{self.path}: images of {height} x {width} x {channels} can't be cut in patches of "
                f"{size} x {size} x {self.config.num_channels}"
            )
            raise ModuleError(message)
        rows, columns = height // size, width // size
        # [B, rows, P, columns, P, C] -> [B, rows, columns, P, P, C]: pixels of a patch in the order of its weight.
        tiles = images.reshape(batch, rows, size, columns, size, channels).transpose(0, 1, 3, 2, 4, 5)
        return self.projection(tiles.reshape(batch, rows * columns, size, size, channels))
