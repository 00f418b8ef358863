"""How a rotary embedding's frequencies are stretched to serve longer contexts than it was trained on."""

import abc
import math

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float


class FrequencyScaling(kn.Configurable):
    """Maps inverse frequencies to stretched ones; plain numbers in, plain numbers out."""

    @abc.abstractmethod
    def stretch(self, inv_freq: Float[Array, " half"], theta: float, dim: int) -> Float[Array, " half"]:
        """Returns the inverse frequencies to use; `theta` and `dim` are the rotary base and rotated width."""

    def attention_factor(self) -> float:
        """Returns the factor of rotated queries and keys; scores are multiplied by its square."""
        return 1.0


class LinearScaling(FrequencyScaling):
    """Position interpolation: every frequency divided by `factor` (Chen et al. 2023, arXiv:2306.15595)."""

    class Config(FrequencyScaling.Config):
        factor: kn.Positive = kn.REQUIRED

    def stretch(self, inv_freq: Float[Array, " half"], theta: float, dim: int) -> Float[Array, " half"]:
        """Returns inv_freq / factor."""
        del theta, dim
        factor: float = self.config.factor
        return inv_freq / factor


class NTKScaling(FrequencyScaling):
    """NTK-aware: a larger base, so that high frequencies stay and the lowest is divided by `factor` (bloc97 2023)."""

    class Config(FrequencyScaling.Config):
        factor: kn.Positive = kn.REQUIRED

    def stretch(self, inv_freq: Float[Array, " half"], theta: float, dim: int) -> Float[Array, " half"]:
        """Returns the frequencies of base theta * factor^(dim / (dim - 2))."""
        del theta
        # A single frequency is the highest, which stays; the power below would divide by 0.
        if dim <= 2:
            return inv_freq
        # The last exponent is (dim - 2) / dim; times dim / (dim - 2) it is 1, and the division by factor exact.
        exponents = jnp.arange(0, dim, 2, dtype=jnp.float32) / dim
        larger: float = self.config.factor ** (dim / (dim - 2))
        return inv_freq * larger**-exponents


class Llama3Scaling(FrequencyScaling):
    """Llama 3.1: wavelengths past `original_length / low` are divided, under `/ high` unchanged, between blended."""

    class Config(FrequencyScaling.Config):
        factor: kn.Positive = 8.0
        low_frequency_factor: kn.Positive = 1.0
        high_frequency_factor: kn.Positive = 4.0
        original_length: kn.Size = 8192

        def check(self) -> list[str]:
            """Returns what is wrong with the two factors."""
            low, high = self.low_frequency_factor, self.high_frequency_factor
            return [] if low <= high else [f"low_frequency_factor ({low}) is above high_frequency_factor ({high})"]

    def stretch(self, inv_freq: Float[Array, " half"], theta: float, dim: int) -> Float[Array, " half"]:
        """Returns the blend of unchanged and divided frequencies."""
        del theta, dim
        cfg = self.config
        turns = cfg.original_length * inv_freq / (2.0 * math.pi)
        span = cfg.high_frequency_factor - cfg.low_frequency_factor
        # 0 in Llama 4 Scout, where both are 1: a hard switch, and 0 / 0 at exactly that wavelength.
        blend = (turns >= cfg.low_frequency_factor) if span == 0 else (turns - cfg.low_frequency_factor) / span
        share = jnp.clip(jnp.asarray(blend, jnp.float32), 0.0, 1.0)
        factor: float = cfg.factor
        return share * inv_freq + (1.0 - share) * inv_freq / factor


class DynamicNTKScaling(FrequencyScaling):
    """Dynamic NTK (emozilla 2023): base theta * (factor * length / original_length - factor + 1)^(dim / (dim - 2)).

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
