"""The contracts of networks of diffusion models, and of what brings pictures to the space they work in."""

import abc
from typing import Any

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import ImageBatch, Made

from kanawa_layers.diffusion.text_encoder import TextWidths


class Denoiser(kn.Module):
    """A network from a noised picture, its time and a wish to what an objective says; a slot of diffusion models.

    A wish is what is known of pictures, as arrays with one row a picture: labels, or `TextStates`, which a batch has or
    an encoder makes. A network of texts has no `num_labels`.
    """

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.REQUIRED
        num_labels: kn.Count = kn.FROM_PARENT

    @classmethod
    def batch_of(cls, cfg: Any) -> type:
        """Returns the record that a network with this config learns from."""
        del cfg
        return ImageBatch

    @classmethod
    @abc.abstractmethod
    def made_by(cls, cfg: Any) -> Made:
        """Returns the pictures, or latents, that a network with this config works on; its parent knows the labels."""

    @classmethod
    def text_widths(cls, cfg: Any) -> TextWidths | None:
        """Returns the widths of the texts that a network with this config reads; None of one that reads none."""
        del cfg
        return None

    @kn.nowrap
    def wish_of(self, batch: Any) -> Any:
        """Returns the wish of each row of a batch of the network's own record."""
        return batch.target_ids

    @kn.nowrap
    @abc.abstractmethod
    def no_wish(self, wish: Any) -> Any:
        """Returns a wish for nothing of the same shapes, for guidance."""

    @abc.abstractmethod
    def forward(self, x: Float[Array, "B H W C"], times: Float[Array, " B"], wish: Any) -> Float[Array, "B H W D"]:
        """Returns fp32 outputs; channels past those of `x` are of its variance, and no sampler here reads them."""

    @kn.nowrap
    @abc.abstractmethod
    def flops_per_picture(self) -> float:
        """Returns forward matmul FLOPs of a picture of its size."""


class Autoencoder(kn.Module):
    """Pictures to latents and back; a slot of diffusion models, whose weights the diffusion's loss doesn't move."""

    class Config(kn.Module.Config):
        pass

    @classmethod
    @abc.abstractmethod
    def picture_shape(cls, cfg: Any, latents: tuple[int, int, int]) -> tuple[int, int, int]:
        """Returns height, width and channels of the pictures that such latents stand for."""

    @abc.abstractmethod
    def encode(self, images: Float[Array, "B H W C"]) -> Float[Array, "B h w D"]:
        """Returns latents of pictures, -1 to 1, scaled as the diffusion model takes them; no draws."""

    @abc.abstractmethod
    def decode(self, latents: Float[Array, "B h w D"]) -> Float[Array, "B H W C"]:
        """Returns the pictures, -1 to 1."""
