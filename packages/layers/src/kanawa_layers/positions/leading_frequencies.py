"""Rotation by the highest frequencies only, over the whole head."""

from typing import Annotated

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float

from kanawa_layers.positions.frequency_scaling import FrequencyScaling


class LeadingFrequencies(FrequencyScaling):
    """The first `fraction` of the frequencies, divided by `factor`; pairs of the others don't rotate (Gemma 4).

    Unlike `Rotary.fraction`, frequencies and pairs are those of the whole head.
    """

    class Config(FrequencyScaling.Config):
        fraction: Annotated[float, kn.Range(0, 1, above=True)] = 0.25
        factor: kn.Positive = 1.0

    def stretch(self, inv_freq: Float[Array, " half"], theta: float, dim: int) -> Float[Array, " half"]:
        """Returns the frequencies to use, 0 for pairs that don't rotate."""
        del theta
        rotating = jnp.arange(dim // 2) < int(self.config.fraction * dim // 2)
        return jnp.where(rotating, inv_freq / self.config.factor, 0.0)
