"""AdEMAMix: Adam with a second, much slower average of gradients (Pagliardini et al. 2024, arXiv:2409.03137)."""

import math
from collections.abc import Mapping

import jax.numpy as jnp
import optax
from jaxtyping import Array
from kanawa.arrays.spec import ParamSpec
from kanawa.config import Count, Epsilon, NonNegative, Partial

from kanawa_runtime.learn.scheduled import ScheduledOptimizer


class AdEMAMix(ScheduledOptimizer):
    """`alpha` weighs the slow average of rate `b3`; both grow over `warmup_steps` updates (section 3.1), 0: at once."""

    class Config(ScheduledOptimizer.Config):
        b1: Partial = 0.9
        b2: Partial = 0.999
        b3: Partial = 0.9999
        alpha: NonNegative = 8.0
        warmup_steps: Count = 0
        eps: Epsilon = 1e-8
        weight_decay: NonNegative = 0.1

    @property
    def moments(self) -> dict[str, bool]:
        """The fast moment and the second one; the slow one forgets too slowly to be rounded."""
        return {"ademamix/m1": False, "ademamix/nu": True}

    @property
    def width_exponent(self) -> float:
        """1: each element moves by about the rate, and fan_in of them add up."""
        return 1.0

    def links(self, specs: Mapping[str, ParamSpec]) -> list[tuple[str, optax.GradientTransformation]]:
        """Returns the transforms.

        The state is "ademamix/m1/…" (fast), "ademamix/m2/…" (slow), "ademamix/nu/…", two counts, and "rate/count".
        """
        cfg = self.config
        b3, alpha = (self.slow_rate, self.slow_weight) if cfg.warmup_steps else (cfg.b3, cfg.alpha)
        return [("ademamix", optax.contrib.scale_by_ademamix(cfg.b1, cfg.b2, b3, alpha, cfg.eps))]

    def slow_weight(self, count: Array) -> Array:
        """Returns alpha after `count` updates: a straight line from 0."""
        cfg = self.config
        weight: Array = cfg.alpha * jnp.minimum(1.0, count.astype(jnp.float32) / cfg.warmup_steps)
        return weight

    def slow_rate(self, count: Array) -> Array:
        """Returns b3 after `count` updates: from b1, such that the average's half-life grows in a straight line."""
        cfg = self.config
        done = jnp.minimum(1.0, count.astype(jnp.float32) / cfg.warmup_steps)
        start, end = math.log(cfg.b1), math.log(cfg.b3)
        return jnp.exp(start * end / ((1.0 - done) * end + done * start))
