"""Optimizers that follow the learner's schedule, and the transforms they are made of, which read each ParamSpec.

Updates are flat, keyed by parameter path."""

import abc
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

    full = optax.with_extra_args_support(inner)

    def update(updates: Flat, state: Any, params: Flat | None = None, **extra: Any) -> tuple[Flat, Any]:
        changed, state = full.update(chosen(updates), state, None if params is None else chosen(params), **extra)
        return {**updates, **changed}, state

    return optax.GradientTransformationExtraArgs(lambda params: inner.init(chosen(params)), update)


_RATE = "rate"


class ScheduledOptimizer(Optimizer):
    """Implement `links`, and give the config a `weight_decay`: the update decays, and follows the learning rate last.

    The rate's state is "rate/count", and the learning rate is reported.
    """

    @abc.abstractmethod
    def links(self, specs: Mapping[str, ParamSpec]) -> list[tuple[str, optax.GradientTransformation]]:
        """Returns the named transforms that come before decay and learning rate."""

    def last(self, learning_rate: Schedule) -> list[tuple[str, optax.GradientTransformation]]:
        """Returns the named transforms that come after the learning rate; none unless overridden."""
        del learning_rate
        return []

    def transformation(self, specs: Mapping[str, ParamSpec], learning_rate: Schedule) -> optax.GradientTransformation:
        """Returns the links, decay and learning rate as one; their state is named by the links."""
        decay = ("decay", decay_by_spec(specs, self.config.weight_decay))
        rate = ("rate", rate_by_spec(specs, learning_rate))
        return optax.named_chain(*self.links(specs), decay, rate, *self.last(learning_rate))

    def num_updates(self, opt: Mapping[str, jax.Array]) -> jax.Array | None:
        """Returns the count in the rate's state."""
        return opt.get("rate/count")
