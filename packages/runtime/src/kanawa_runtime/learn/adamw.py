"""AdamW: Adam with decoupled weight decay (arXiv:1711.05101)."""

from collections.abc import Mapping

import jax.numpy as jnp
import optax
from kanawa.arrays.spec import ParamSpec
from kanawa.config import Epsilon, FloatDtype, NonNegative, Partial

from kanawa_runtime.learn.scheduled import ScheduledOptimizer


class AdamW(ScheduledOptimizer):
    """Both moments in the parameter's dtype, or the first in `first_moment_dtype`.

    A parameter decays by `weight_decay` times its ParamSpec's, and both are multiplied by the
    learning rate.
    """

    class Config(ScheduledOptimizer.Config):
        b1: Partial = 0.9
        b2: Partial = 0.95
        eps: Epsilon = 1e-8
        weight_decay: NonNegative = 0.1
        first_moment_dtype: FloatDtype | None = None

    @property
    def moments(self) -> dict[str, bool]:
        """Both moments."""
        return {"adam/mu": False, "adam/nu": True}

    @property
    def width_exponent(self) -> float:
        """1: each element moves by about the rate, and fan_in of them add up."""
        return 1.0

    def links(self, specs: Mapping[str, ParamSpec]) -> list[tuple[str, optax.GradientTransformation]]:
        """Returns the transform; the state is "adam/mu/…", "adam/nu/…", "adam/count", "rate/count"."""
        cfg = self.config
        dtype = None if cfg.first_moment_dtype is None else jnp.dtype(cfg.first_moment_dtype)
        return [("adam", optax.scale_by_adam(cfg.b1, cfg.b2, cfg.eps, mu_dtype=dtype))]
