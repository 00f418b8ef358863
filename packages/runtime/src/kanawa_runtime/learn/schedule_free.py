"""Schedule-free AdamW: an average of iterates instead of a decaying rate (Defazio et al. 2024, arXiv:2405.15682)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from kanawa.arrays.spec import ParamSpec
from kanawa.config import Epsilon, NonNegative, Partial
from kanawa.contracts.optimizer import Schedule

from kanawa_runtime.learn.scheduled import Flat, ScheduledOptimizer


class ScheduleFreeAdamW(ScheduledOptimizer):
    """Wants a constant rate after a warm-up.

    The parameters are the point y where gradients are taken; evaluation uses the average x that `evaluated` gives. `b1`
    places y between the fast iterate z and x, instead of a first moment; iterates count by rate ** `power`.
    """

    class Config(ScheduledOptimizer.Config):
        b1: Partial = 0.9
        b2: Partial = 0.95
        eps: Epsilon = 1e-8
        power: NonNegative = 2.0
        weight_decay: NonNegative = 0.1

    @property
    def width_exponent(self) -> float:
        """1: each element moves by about the rate, and fan_in of them add up."""
        return 1.0

    def links(self, specs: Mapping[str, ParamSpec]) -> list[tuple[str, optax.GradientTransformation]]:
        """Returns the transform; the state is "rms/nu/…", "rms/count", "rate/count", and that of `last`."""
        cfg = self.config
        return [("rms", optax.scale_by_rms(cfg.b2, cfg.eps, eps_in_sqrt=False, bias_correction=True))]

    def last(self, learning_rate: Schedule) -> list[tuple[str, optax.GradientTransformation]]:
        """Returns the averaging; its state is "average/z/…", "average/weight", "average/largest_rate"."""
        return [("average", _averaging(self.config.b1, self.config.power, learning_rate))]

    def evaluated(self, params: Flat, opt: Flat) -> dict[str, jax.Array]:
        """Returns the averages x of the trained parameters, the others as they are."""
        b1 = self.config.b1
        fast = {path: opt.get(f"average/z/{path}") for path in params}
        return {path: y if fast[path] is None else (y - (1.0 - b1) * fast[path]) / b1 for path, y in params.items()}


class AverageState(NamedTuple):
    """The fast iterate by path, and what the average's weights need."""

    z: dict[str, Any]
    count: Any
    weight: Any
    largest_rate: Any


def _averaging(b1: float, power: float, learning_rate: Schedule) -> optax.GradientTransformation:
    """Turns a step of the fast iterate z into one of y = (1 - b1) z + b1 x, where x averages all z."""

    def init(params: Flat) -> AverageState:
        # Copies: the step donates both the parameters and this.
        z = {path: jnp.array(param) for path, param in params.items()}
        return AverageState(z, jnp.zeros((), jnp.int32), jnp.zeros(()), jnp.zeros(()))

    def update(updates: Flat, state: AverageState, params: Flat | None = None) -> tuple[Flat, AverageState]:
        assert params is not None  # the learner gives them
        largest = jnp.maximum(state.largest_rate, jnp.asarray(learning_rate(state.count), jnp.float32))
        weight = state.weight + largest**power
        # The first updates of a warm-up from 0 weigh nothing.
        share = jnp.where(weight > 0, largest**power / jnp.where(weight > 0, weight, 1.0), 0.0)
        z, changes = {}, {}
        for path, change in updates.items():
            old, part = state.z[path], share.astype(change.dtype)
            z[path] = old + change
            # b1 times the change of x, and 1 - b1 times that of z, without computing x: exact where nothing moves.
            changes[path] = (b1 * part + 1.0 - b1) * change - part * (params[path] - old)
        return changes, AverageState(z, optax.safe_increment(state.count), weight, largest)

    return optax.GradientTransformation(init, update)
