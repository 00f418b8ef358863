"""Optimizers that follow the learner's schedule, and the transforms they are made of, which read each ParamSpec.

Updates are flat, keyed by parameter path."""

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from kanawa.arrays.spec import ParamSpec
from kanawa.contracts import Optimizer
from kanawa.contracts.optimizer import Schedule

Flat = Mapping[str, jax.Array]


def decay_by_spec(specs: Mapping[str, ParamSpec], weight_decay: float) -> optax.GradientTransformation:
    """Adds `weight_decay` x the spec's weight_decay x the parameter to its update; no operation where that is 0."""

    def update(updates: Flat, state: Any, params: Flat | None = None) -> tuple[Flat, Any]:
        assert params is not None  # the learner gives them
        decayed = {}
        for path, change in updates.items():
            factor = weight_decay * specs[path].weight_decay
            decayed[path] = change + factor * params[path] if factor else change
        return decayed, state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def rate_by_spec(specs: Mapping[str, ParamSpec], learning_rate: Schedule) -> optax.GradientTransformation:
    """Multiplies by -1 x the learning rate x the spec's lr_scale; its state counts the updates."""

    def init(params: Flat) -> optax.ScaleByScheduleState:
        del params
        return optax.ScaleByScheduleState(count=jnp.zeros((), jnp.int32))

    def update(
        updates: Flat, state: optax.ScaleByScheduleState, params: Flat | None = None
    ) -> tuple[Flat, optax.ScaleByScheduleState]:
        del params
        rate = learning_rate(state.count)
        # One scalar product for each distinct scale, then one elementwise product a parameter.
        factors = {spec.lr_scale: -rate * spec.lr_scale for spec in specs.values()}
        scaled = {
            path: change * jnp.asarray(factors[specs[path].lr_scale], change.dtype) for path, change in updates.items()
        }
        return scaled, optax.ScaleByScheduleState(count=optax.safe_increment(state.count))

    return optax.GradientTransformation(init, update)


def only_paths(paths: Collection[str], inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Applies `inner` to the parameters at `paths`; the others pass through and take no state."""

    def chosen(flat: Flat) -> Flat:
        return {path: leaf for path, leaf in flat.items() if path in paths}

    def update(updates: Flat, state: Any, params: Flat | None = None) -> tuple[Flat, Any]:
        changed, state = inner.update(chosen(updates), state, None if params is None else chosen(params))
        return {**updates, **changed}, state

    return optax.GradientTransformation(lambda params: inner.init(chosen(params)), update)


_RATE = "rate"


class ScheduledOptimizer(Optimizer):
    """Derive from it and put `rate_link` into the named chain; the learning rate is then reported."""

    def num_updates(self, opt: Mapping[str, jax.Array]) -> jax.Array | None:
        """Returns the count in `rate_link`'s state."""
        return opt.get(f"{_RATE}/count")


def rate_link(specs: Mapping[str, ParamSpec], learning_rate: Schedule) -> tuple[str, optax.GradientTransformation]:
    """Returns the named transform that multiplies by the learning rate; its state is "rate/count"."""
    return _RATE, rate_by_spec(specs, learning_rate)
