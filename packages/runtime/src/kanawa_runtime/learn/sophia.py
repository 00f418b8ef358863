"""Sophia: momentum divided by an occasional estimate of curvature, and clipped (Liu et al. 2023, arXiv:2305.14342)."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from kanawa.arrays.spec import ParamSpec
from kanawa.config import Epsilon, NonNegative, Partial, Positive, Size

from kanawa_runtime.learn.scheduled import Flat, ScheduledOptimizer


class Sophia(ScheduledOptimizer):
    """Sophia-G: every `interval` updates a gradient on labels drawn from the model measures curvature (section 2.3).

    The estimate is that of Gauss, Newton and Bartlett: any gradient strategy and kernel computes it, where Hutchinson's
    would need second derivatives of each. `gamma` sets the share of coordinates that are clipped. Wants about 0.8 times
    AdamW's learning rate. The update is made of algorithm 3.
    """

    uses_curvature = True

    class Config(ScheduledOptimizer.Config):
        b1: Partial = 0.96
        b2: Partial = 0.99
        gamma: Positive = 0.05
        interval: Size = 10
        eps: Epsilon = 1e-12
        weight_decay: NonNegative = 0.2

    @property
    def moments(self) -> dict[str, bool]:
        """The momentum; curvature, measured rarely, stays float32."""
        return {"sophia/mu": False}

    @property
    def width_exponent(self) -> float:
        """1: each element moves by about the rate, and fan_in of them add up."""
        return 1.0

    def links(self, specs: Mapping[str, ParamSpec]) -> list[tuple[str, optax.GradientTransformation]]:
        """Returns the transform; the state is "sophia/mu/…", "sophia/curvature/…", "sophia/count", "rate/count"."""
        del specs
        cfg = self.config

        def init(params: Flat) -> SophiaState:
            zeros = ({path: jnp.zeros_like(param) for path, param in params.items()} for _ in range(2))
            return SophiaState(jnp.zeros((), jnp.int32), *zeros)

        def update(
            grads: Flat,
            state: SophiaState,
            params: Flat | None = None,
            *,
            curvature: Callable[[], Flat],
            **others: Any,
        ) -> tuple[Flat, SophiaState]:
            del params, others
            mu = {path: cfg.b1 * state.mu[path] + (1.0 - cfg.b1) * grad for path, grad in grads.items()}

            def measured() -> dict[str, jax.Array]:
                new = curvature()
                return {
                    path: (cfg.b2 * old + (1.0 - cfg.b2) * new[path]).astype(old.dtype)
                    for path, old in state.curvature.items()
                }

            due = state.count % cfg.interval == 0
            known = jax.lax.cond(due, measured, lambda: dict(state.curvature))
            updates = {
                path: jnp.clip(moment / jnp.maximum(cfg.gamma * known[path], cfg.eps), -1.0, 1.0)
                for path, moment in mu.items()
            }
            return updates, SophiaState(optax.safe_increment(state.count), mu, known)

        return [("sophia", optax.GradientTransformationExtraArgs(init, update))]


class SophiaState(NamedTuple):
    """Moving averages of gradients and of curvature, by path."""

    count: Any
    mu: dict[str, Any]
    curvature: dict[str, Any]
