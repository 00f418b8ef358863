"""Absolute positions, added to token embeddings: learned (GPT-2, BERT) or sinusoidal (Vaswani et al. 2017)."""

import abc

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.errors import ModuleError


class AbsolutePositions(kn.Module):
    """A vector for each position; a slot of models, added to the token embedding."""

    class Config(kn.Module.Config):
        output_dim: kn.Size = kn.FROM_PARENT

    @abc.abstractmethod
    def forward(self, positions: Int[Array, "B T"]) -> Float[Array, "B T E"]:
        """Returns what is added to the embeddings, in the compute dtype."""


class LearnedPositions(AbsolutePositions):
    """A trained row for each of `max_length` positions, counted from `offset`."""

    class Config(AbsolutePositions.Config):
        max_length: kn.Size = kn.REQUIRED
        offset: kn.Count = 0
        init_stddev: kn.NonNegative = 0.02
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"weight": "weight"})

    def setup(self) -> None:
        """Declares the table, [positions, embed]."""
        cfg = self.config
        self.add_param(
            "weight",
            (cfg.max_length + cfg.offset, cfg.output_dim),
            axes=(None, "embed"),
            init=kn.normal(cfg.init_stddev),
            fan_in_axes=(1,),
            fan_out_axes=(0,),
        )

    def forward(self, positions: Int[Array, "B T"]) -> Float[Array, "B T E"]:
        """Returns the rows; raises ModuleError for a row of more than `max_length` tokens.

        Positions past the table that aren't known in advance, as in a cache's unused tail, get its last row.
        """
        limit = self.config.max_length
        if positions.shape[-1] > limit:
            message = f"{self.path}: {positions.shape[-1]} tokens in a row, but positions are learned up to {limit}"
            raise ModuleError(message)
        # `offset` is for tables whose first rows are no positions: OPT's and BART's begin at row 2. Clipped because
        # jnp.take's default fills rows out of bounds with NaN, which a padded tail would carry into attention.
        return jnp.take(self.param("weight"), positions + self.config.offset, axis=0, mode="clip")

    @kn.nowrap
    def longest_sequence(self) -> int:
        """Returns how many positions are learned."""
        return int(self.config.max_length)


class SinusoidalPositions(AbsolutePositions):
    """sin and cos of position * theta^(-2i / dim) at dimensions 2i and 2i + 1; no parameters (section 3.5)."""

    class Config(AbsolutePositions.Config):
        theta: kn.Positive = 10_000.0

    def forward(self, positions: Int[Array, "B T"]) -> Float[Array, "B T E"]:
        """Returns the waves, computed in fp32."""
        cfg = self.config
        frequencies = cfg.theta ** -(jnp.arange(0, cfg.output_dim, 2, dtype=jnp.float32) / cfg.output_dim)
        angles = positions[..., None].astype(jnp.float32) * frequencies[None, None]
        waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(*positions.shape, -1)
        # An odd width has one cosine fewer than sines.
        return waves[..., : cfg.output_dim].astype(kn.current_plan().precision.compute)
