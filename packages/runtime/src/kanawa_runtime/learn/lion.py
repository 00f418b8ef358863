"""Lion: the sign of an interpolated momentum (Chen et al. 2023, arXiv:2302.06675)."""

from collections.abc import Mapping

import jax.numpy as jnp
import optax
from kanawa.arrays.spec import ParamSpec
from kanawa.config import FloatDtype, NonNegative, Partial

from kanawa_runtime.learn.scheduled import ScheduledOptimizer


class Lion(ScheduledOptimizer):
    """One moment, half of Adam's state. Wants a learning rate 3 to 10 times lower and a decay as much higher."""

    class Config(ScheduledOptimizer.Config):
        b1: Partial = 0.9
        b2: Partial = 0.99
        weight_decay: NonNegative = 0.3
        moment_dtype: FloatDtype | None = None

    @property
    def moments(self) -> dict[str, bool]:
        """The momentum."""
        return {"lion/mu": False}

    @property
    def width_exponent(self) -> float:
        """1: each element moves by about the rate, and fan_in of them add up."""
        return 1.0

    def links(self, specs: Mapping[str, ParamSpec]) -> list[tuple[str, optax.GradientTransformation]]:
        """Returns the transform; the state is "lion/mu/…", "lion/count" and "rate/count"."""
        cfg = self.config
        dtype = None if cfg.moment_dtype is None else jnp.dtype(cfg.moment_dtype)
        return [("lion", optax.scale_by_lion(cfg.b1, cfg.b2, mu_dtype=dtype))]
