"""LongRoPE (Ding et al. 2024, arXiv:2402.13753): a searched factor for each frequency, as in Phi-3."""

import math

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.errors import ConfigError

from kanawa_layers.positions.frequency_scaling import FrequencyScaling


class LongRopeScaling(FrequencyScaling):
    """Divides each frequency by its own factor: `long_factors` where `length` exceeds `original_length`.

    `length` is the expected length of sequences (None: `max_length`). It is fixed in advance, because a cache holds
    keys that are already rotated; switching with a sequence's length would make old keys wrong.
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
