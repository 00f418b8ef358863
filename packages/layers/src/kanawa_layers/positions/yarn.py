"""YaRN (Peng et al. 2023, arXiv:2309.00071): slow frequencies are stretched and scores sharpened."""

import math

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float

from kanawa_layers.positions.frequency_scaling import FrequencyScaling


class YarnScaling(FrequencyScaling):
    """Blends unchanged and divided frequencies along a ramp over the dimensions.

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
