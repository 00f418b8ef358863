"""Images to tokens: one projection of each square patch (Dosovitskiy et al. 2020, arXiv:2010.11929)."""

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.errors import ModuleError

from kanawa_layers.basic.linear import Linear


class PatchEmbedding(kn.Module):
    """[batch, channels, height, width] to [batch, patches, embed], rows of patches one after another.

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
                    "weight": kn.foreign.Tensor(name="weight", form=kn.foreign.Permuted.Config(order=(3, 0, 1, 2))),
                    "bias": "bias",
                }
            ),
        )
        foreign: kn.foreign.Names = kn.foreign.Names(children={"projection": "projection"})

    def setup(self) -> None:
        """Declares the projection, [channels, patch, patch, embed]."""
        cfg = self.config
        self.add_child(
            "projection",
            cfg.projection,
            input_shape=(cfg.num_channels, cfg.patch_size, cfg.patch_size),
            output_shape=(cfg.output_dim,),
            axes=(None, None, None, "embed"),
        )

    def forward(self, images: Float[Array, "B C H W"]) -> Float[Array, "B T E"]:
        """Returns a token for each patch; raises ModuleError where patches don't tile the image."""
        size = self.config.patch_size
        batch, channels, height, width = images.shape
        if height % size or width % size or channels != self.config.num_channels:
            message = (
                f"{self.path}: images of {channels} x {height} x {width} can't be cut in patches of "
                f"{self.config.num_channels} x {size} x {size}"
            )
            raise ModuleError(message)
        rows, columns = height // size, width // size
        # [B, C, rows, P, columns, P] -> [B, rows, columns, C, P, P]; within a patch the order of a convolution's
        # weight.
        tiles = images.reshape(batch, channels, rows, size, columns, size).transpose(0, 2, 4, 1, 3, 5)
        return self.projection(tiles.reshape(batch, rows * columns, channels, size, size))
