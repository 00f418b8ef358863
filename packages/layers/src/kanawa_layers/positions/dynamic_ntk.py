"""Dynamic NTK: the base grows with how far sequences exceed the trained length (emozilla 2023)."""

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float

from kanawa_layers.positions.frequency_scaling import FrequencyScaling


class DynamicNTKScaling(FrequencyScaling):
    """Base theta * (factor * length / original_length - factor + 1)^(dim / (dim - 2)); plain up to `original_length`.

    `length` is the expected length of sequences, fixed in advance: a cache holds keys that are already rotated.
    """

    class Config(FrequencyScaling.Config):
        factor: kn.Positive = 2.0
        original_length: kn.Size = kn.REQUIRED
        length: kn.Size = kn.REQUIRED

    def stretch(self, inv_freq: Float[Array, " half"], theta: float, dim: int) -> Float[Array, " half"]:
        """Returns the frequencies of the larger base."""
        del theta
        cfg = self.config
        # A single frequency is the highest, which stays; the power below would divide by 0.
        if dim <= 2:
            return inv_freq
        # Up to the trained length this is 1, and the frequencies are those the model was trained with.
        growth: float = cfg.factor * max(cfg.length, cfg.original_length) / cfg.original_length - cfg.factor + 1.0
        exponents = jnp.arange(0, dim, 2, dtype=jnp.float32) / dim
        larger: float = growth ** (dim / (dim - 2))
        return inv_freq * larger**-exponents
