"""How a rotary embedding's frequencies are stretched to serve longer contexts than it was trained on."""

import abc
import math

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.errors import ConfigError


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


class YarnScaling(FrequencyScaling):
    """YaRN (Peng et al. 2023, arXiv:2309.00071): blends unchanged and divided frequencies along a ramp.

    Dimensions that rotate more than `fast_turns` times in `original_length` tokens are unchanged, those that rotate
    less than `slow_turns` times are divided by `factor`. `truncate` rounds the ramp's ends to whole dimensions (gpt-oss
    doesn't).
    """

    class Config(FrequencyScaling.Config):
        factor: kn.Positive = kn.REQUIRED
        original_length: kn.Size = kn.REQUIRED
        fast_turns: kn.Positive = 32.0
        slow_turns: kn.Positive = 1.0
        truncate: bool = True
        multiplier: kn.Positive | None = None
        mscale: kn.Finite | None = None
        mscale_all_dim: kn.Finite | None = None

        def check(self) -> list[str]:
            """Returns what is wrong with the factor."""
            return [] if self.factor >= 1.0 else [f"factor is {self.factor}, expected at least 1"]

    def stretch(self, inv_freq: Float[Array, " half"], theta: float, dim: int) -> Float[Array, " half"]:
        """Returns the blend of unchanged and divided frequencies."""
        cfg = self.config

        def dimension(turns: float) -> float:
            # The i at which original_length * theta^(-2i / dim) / (2 pi) is `turns`: the published find_correction_dim.
            return dim * math.log(cfg.original_length / (turns * 2.0 * math.pi)) / (2.0 * math.log(theta))

        low, high = dimension(cfg.fast_turns), dimension(cfg.slow_turns)
        if cfg.truncate:
            low, high = math.floor(low), math.ceil(high)
        # dim - 1 and not dim / 2 - 1, as in the published code: a ramp may end past the last frequency there is.
        low, high = max(low, 0), min(high, dim - 1)
        # The published code's guard: a ramp of no width would divide by 0.
        width = 0.001 if high == low else high - low
        divided = jnp.clip((jnp.arange(dim // 2, dtype=jnp.float32) - low) / width, 0.0, 1.0)
        factor: float = cfg.factor
        return divided * inv_freq / factor + (1.0 - divided) * inv_freq

    def attention_factor(self) -> float:
        """Returns `multiplier`, else the ratio of both mscales (DeepSeek), else 0.1 ln(factor) + 1 (the paper, 3.4)."""
        cfg = self.config
        if cfg.multiplier is not None:
            return float(cfg.multiplier)
        # DeepSeek moves the temperature into the score scale; with both mscales equal nothing is left for cos and sin.
        if cfg.mscale and cfg.mscale_all_dim:
            return yarn_mscale(cfg.factor, cfg.mscale) / yarn_mscale(cfg.factor, cfg.mscale_all_dim)
        return yarn_mscale(cfg.factor)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """Returns 0.1 * mscale * ln(factor) + 1. DeepSeek multiplies its score scale by the square of this."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


class LongRopeScaling(FrequencyScaling):
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753), as in Phi-3: a factor for each frequency.

    `long_factors` are used where `length` exceeds `original_length`. `length` is the expected
    length of sequences (None: `max_length`). It is fixed in advance, because a cache holds keys that are already
    rotated; switching with a sequence's length would make old keys wrong.
    """

    class Config(FrequencyScaling.Config):
        short_factors: tuple[kn.Positive, ...] = kn.REQUIRED
        long_factors: tuple[kn.Positive, ...] = kn.REQUIRED
        original_length: kn.Size = kn.REQUIRED
        max_length: kn.Size = kn.REQUIRED
        length: kn.Size | None = None
        multiplier: kn.Positive | None = None

    def stretch(self, inv_freq: Float[Array, " half"], theta: float, dim: int) -> Float[Array, " half"]:
        """Returns inv_freq / factors; raises ConfigError where there isn't one factor for each."""
        del theta
        cfg = self.config
        long = (cfg.length or cfg.max_length) > cfg.original_length
        factors = cfg.long_factors if long else cfg.short_factors
        if len(factors) != dim // 2:
            name = "long_factors" if long else "short_factors"
            message = f"{name} has {len(factors)} numbers, but {dim} rotated dimensions have {dim // 2} frequencies"
            raise ConfigError(message)
        # Short factors aren't all 1: Phi-3's differ from it even within the trained length.
        return inv_freq / jnp.asarray(factors, jnp.float32)

    def attention_factor(self) -> float:
        """Returns `multiplier`, else sqrt(1 + ln(max_length / original_length) / ln(original_length))."""
        cfg = self.config
        if cfg.multiplier is not None:
            return float(cfg.multiplier)
        factor = cfg.max_length / cfg.original_length
        return 1.0 if factor <= 1.0 else math.sqrt(1.0 + math.log(factor) / math.log(cfg.original_length))
