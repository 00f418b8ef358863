"""What models that make pictures offer to those who ask for some: from noise, step by step, by a sampler."""

import abc
from typing import Any, NamedTuple

from jaxtyping import Array, Float, Int, Num, UInt32

from kanawa.config import REQUIRED, Size
from kanawa.contracts.roles import Model
from kanawa.module import Module


class Made(NamedTuple):
    """The pictures that a model makes, and what it makes them of.

    Attributes:
        shape: height, width and channels.
        num_labels: how many labels it knows; the number itself stands for no label. 0 of a model that takes none.
        label_names: what they are called, where that is known.
        prompt_length: how many ids of a text a row has; None of a model that reads no ids.
        vocab_size: how many ids there are; None of a model that reads none.
        reads_states: whether it reads what encoders made of texts, and has no encoder itself.
        is_latent: whether what it makes are numbers for a decoder that the model hasn't got, and no pixels.
    """

    shape: tuple[int, int, int]
    num_labels: int = 0
    label_names: tuple[str, ...] = ()
    prompt_length: int | None = None
    vocab_size: int | None = None
    reads_states: bool = False
    is_latent: bool = False


class Sampler(Module, abstract=True):
    """How noise becomes a picture in `num_steps` calls of a model; a slot of models that make pictures.

    It has no parameters: a trained model takes any sampler that fits what it was trained to predict.
    """

    class Config(Module.Config):
        num_steps: Size = 50


class MakesPictures(Model):
    """A model that makes pictures of noise."""

    class Config(Model.Config):
        sampler: Sampler.Config = REQUIRED

    @classmethod
    @abc.abstractmethod
    def made_by(cls, cfg: Any) -> Made:
        """Returns what a model with this config makes."""

    @abc.abstractmethod
    def make_pictures(
        self,
        wanted: Int[Array, " B *length"] | None,
        seeds: UInt32[Array, " B"],
        guidance: Float[Array, " B"] | None = None,
    ) -> Num[Array, "B H W C"]:
        """Returns pixels, uint8, or fp32 latents where `Made.is_latent`.

        `wanted` are labels [B], or ids of texts [B, length], -1 past a text's end. A row depends on its own seed and
        wish alone, not on the rest of its batch. `guidance` says how far a row goes from what the model makes of
        nothing towards what it makes of the wish: 1 is the model as it is, and None is that at half the work.
        """
