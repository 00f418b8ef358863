"""The learner: gradients to new parameters, on flat dictionaries keyed by parameter path."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.arrays.optimizer_state import from_flat, to_flat
from kanawa.arrays.spec import ParamSpec
from kanawa.config import CallableConfig, Configurable, Positive, match_path
from kanawa.contracts import GradientTransformation, Optimizer, ParameterGroup, ScheduleFactory
from kanawa.contracts import ParameterRule as ParameterRule
from kanawa.contracts.optimizer import Schedule
from kanawa.errors import UsageError, did_you_mean
from kanawa.module import Last, Metric

from kanawa_runtime.learn.adamw import AdamW
from kanawa_runtime.learn.from_optax import FromOptax
from kanawa_runtime.learn.groups import Grouped, regrouped
from kanawa_runtime.learn.loss_scale import NAMES as SCALE_NAMES
from kanawa_runtime.learn.loss_scale import LossScale
from kanawa_runtime.learn.moving_average import MovingAverage, without_average
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.learn.state_storage import StateStorage, Storing
from kanawa_runtime.learn.width_transfer import WidthTransfer


class ParameterRuleError(UsageError):
    """A rule for parameters matches none, or leaves none to train."""


def apply_rules(specs: Mapping[str, ParamSpec], rules: Sequence[ParameterRule]) -> dict[str, ParamSpec]:
    """Returns the specs of the parameters to train, with the rules applied; none thaws what isn't trainable.

    Raises ParameterRuleError for a rule that matches nothing, and where nothing is left to train.
    """
    changed = dict(specs)
    # Not trainable by the layer's own word, such as a quantised weight under an adapter.
    fixed = {path for path, spec in specs.items() if not spec.trainable}
    frozen: set[str] = set()
    for rule in rules:
        matched = [path for path in specs if match_path(rule.where, path)]
        if not matched:
            message = f"no parameter matches {rule.where!r}{did_you_mean(rule.where, specs)}"
            raise ParameterRuleError(message)
        for path in matched:
            spec = changed[path]
            changed[path] = dataclasses.replace(
                spec,
                lr_scale=spec.lr_scale if rule.lr_scale is None else rule.lr_scale,
                weight_decay=spec.weight_decay if rule.weight_decay is None else rule.weight_decay,
            )
            (frozen.add if rule.frozen else frozen.discard)(path)
    frozen |= fixed
    if specs and len(frozen) == len(specs):
        message = f"the rules freeze all {len(specs)} parameters: nothing is left to train"
        raise ParameterRuleError(message)
    return {path: spec for path, spec in changed.items() if path not in frozen}


Flat = dict[str, jax.Array]

#: The state of a `steerable` learner: what the schedule's rate is multiplied by.
RATE_FACTOR = "rate_factor"


class Learner(Configurable):
    """An optimizer, its schedule, clipping by global norm (None: off), exceptions by path (`rules`).

    `groups` have optimizers of their own, and `optimizer` takes the parameters of none.

    The optimizer may be any optax transformation: `kn.config_for(optax.adamw, learning_rate=kn.FROM_PARENT)`.

    `skip_nonfinite` drops an update whose gradient norm is NaN or infinite, optimizer state and
    counts included, and reports it as the metric `skipped_update`. With `average` a moving average of the parameters is
    saved beside them, evaluated and served. Services may change the rate of a learner that is `steerable`: the factor
    is part of the optimizer's state. `loss_scale` is for float16 compute; `state_storage` stores moments in fewer bits.
    """

    class Config(Configurable.Config):
        optimizer: Optimizer.Config | CallableConfig = AdamW.Config()
        schedule: ScheduleFactory.Config = Constant.Config(peak=1e-3)
        clip_norm: Positive | None = 1.0
        rules: tuple[ParameterRule, ...] = ()
        groups: tuple[ParameterGroup, ...] = ()
        skip_nonfinite: bool = False
        average: MovingAverage.Config | None = None
        steerable: bool = False
        loss_scale: LossScale.Config | None = None
        state_storage: StateStorage.Config | None = None
        width_transfer: WidthTransfer.Config | None = None

    def update_rule(self, specs: Mapping[str, ParamSpec], total_steps: int) -> "UpdateRule":
        """Returns the pure functions for these parameters; raises UsageError for rules that can't apply."""
        trained = apply_rules(specs, self.config.rules)
        optimizer = self.config.optimizer
        if isinstance(optimizer, CallableConfig):
            optimizer = FromOptax.Config(transform=optimizer)
        if self.config.width_transfer is not None:
            if self.config.groups:
                message = "learner.width_transfer has one law for all matrices, and groups may have several; drop one"
                raise UsageError(message)
            trained = self.config.width_transfer.build().scaled(trained, optimizer.build())
        if self.config.groups:
            trained = regrouped(self.config.groups, trained)
            optimizer = Grouped.Config(groups=self.config.groups, rest=optimizer)
        schedule = self.config.schedule.build().schedule(total_steps)
        return UpdateRule(
            trained,
            optimizer.build(),
            schedule,
            self.config.clip_norm,
            skip_nonfinite=self.config.skip_nonfinite,
            average=None if self.config.average is None else self.config.average.build(),
            steerable=self.config.steerable,
            loss_scale=None if self.config.loss_scale is None else self.config.loss_scale.build(),
            storage=None if self.config.state_storage is None else self.config.state_storage.build(),
        )


class UpdateRule:
    """`init` and `update` of a learner; both are pure and traceable."""

    def __init__(
        self,
        specs: Mapping[str, ParamSpec],
        optimizer: Optimizer,
        schedule: Schedule,
        clip_norm: float | None,
        *,
        skip_nonfinite: bool,
        average: MovingAverage | None = None,
        steerable: bool = False,
        loss_scale: LossScale | None = None,
        storage: StateStorage | None = None,
    ) -> None:
        self.specs = specs
        self._optimizer = optimizer
        self._transform: GradientTransformation = optimizer.transformation(specs, self._rate)
        self._schedule = schedule
        self._reported: tuple[jax.Array, jax.Array] | None = None
        self._structures: dict[Any, Any] = {}
        self._clip_norm = clip_norm
        self._skip_nonfinite = skip_nonfinite
        self._average = average
        self._first_factor = {RATE_FACTOR: np.ones((), np.float32)} if steerable else {}
        self._factor: jax.Array | None = None
        self._scaling = loss_scale
        self._storing: Storing | None = None
        if storage is not None:
            if not optimizer.moments:
                message = (
                    f"{type(optimizer).__name__} has no state that may be stored in fewer bits; set "
                    "learner.state_storage=None, or choose another optimizer, such as adamw"
                )
                raise UsageError(message)
            self._storing = Storing(storage, optimizer.moments, {path: spec.shape for path, spec in specs.items()})
        if average is not None and optimizer.averages:
            message = (
                f"{type(optimizer).__name__} evaluates an average of its own already; set learner.average=None, or "
                "another optimizer"
            )
            raise UsageError(message)

    def init(self, params: Flat) -> Flat:
        """Returns the optimizer's state before the first update."""
        trained = self._trained(params)
        state = to_flat(self._transform.init(trained))
        state = state if self._storing is None else self._storing.encode(state, jnp.zeros((), jnp.int32))
        return state | self._own_state(trained)

    def _own_state(self, trained: Flat) -> Flat:
        """Returns the learner's own state before the first update."""
        averages = {} if self._average is None else self._average.init(trained)
        scaling = {} if self._scaling is None else self._scaling.init()
        return averages | scaling | {path: jnp.asarray(one) for path, one in self._first_factor.items()}

    def abstract(self, params: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shapes and dtypes of what `init` gives for parameters of these shapes and dtypes."""
        trained = self._trained(params)
        shapes = {path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in trained.items()}
        state = to_flat(self._structure(trained))
        if self._storing is not None:
            state = jax.eval_shape(self._storing.encode, state, jax.ShapeDtypeStruct((), jnp.int32))
        result: dict[str, Any] = state | jax.eval_shape(self._own_state, shapes)
        return result

    @property
    def averages(self) -> bool:
        """Whether `evaluated` gives other parameters than those trained."""
        return self._average is not None or self._optimizer.averages

    def evaluated(self, params: Flat, opt: Flat) -> Flat:
        """Returns the parameters to evaluate and serve with."""
        trained = self._trained(params)
        if self._average is not None:
            return {**params, **self._average.evaluated(trained, opt)}
        return {**params, **self._optimizer.evaluated(trained, opt)}

    def loss_scale(self, opt: Mapping[str, jax.Array]) -> jax.Array | None:
        """Returns what the loss is to be multiplied by before its gradient; `update` divides. None: by nothing."""
        return None if self._scaling is None else self._scaling.scale(opt)

    @property
    def uses_curvature(self) -> bool:
        """Whether `update` needs `curvature`."""
        return self._optimizer.uses_curvature

    def update(
        self, gradients: Flat, opt: Flat, params: Flat, curvature: Callable[[], Flat] | None = None
    ) -> tuple[Flat, Flat, dict[str, Metric]]:
        """Returns parameters and state after one update, and the metrics `gradient_norm` and `learning_rate`.

        `curvature` estimates the Hessian's diagonal where the optimizer `uses_curvature`; others don't call it.
        """
        trained, grads = self._trained(params), self._trained(gradients)
        scale = self.loss_scale(opt)
        if scale is not None:
            grads = {path: grad * (1.0 / scale).astype(grad.dtype) for path, grad in grads.items()}
        norm = global_norm(grads)
        metrics: dict[str, Metric] = {"gradient_norm": Last(norm)}
        count = self._optimizer.num_updates(opt)
        self._factor = opt.get(RATE_FACTOR)
        if count is not None:
            self._reported = count, self._scheduled(count)
            metrics["learning_rate"] = Last(self._reported[1])
        try:
            state = self._optimizer_state(opt, trained)
            extra = {"curvature": curvature} if self.uses_curvature else {}
            updates, state = self._transform.update(self._clipped(grads, norm), state, trained, **extra)
        finally:
            # An array of this trace, and of no other.
            self._reported = self._factor = None
        after = {path: value + updates[path].astype(value.dtype) for path, value in trained.items()}
        flat = to_flat(state)
        if self._storing is not None:
            flat = self._storing.encode(flat, jnp.zeros((), jnp.int32) if count is None else count)
        if self._average is not None:
            flat |= self._average.update(opt, after)
        flat |= {path: opt[path] for path in self._first_factor}
        finite = jnp.isfinite(norm)
        if self._skip_nonfinite or self._scaling is not None:
            # A select, not a branch: both sides exist anyway, and XLA fuses it into the update.
            after = {path: jnp.where(finite, new, trained[path]) for path, new in after.items()}
            flat = {path: jnp.where(finite, new, opt[path]) for path, new in flat.items()}
            metrics["skipped_update"] = Last(1.0 - finite.astype(jnp.float32))
        if self._scaling is not None:
            flat |= self._scaling.update(opt, finite)
            metrics["loss_scale"] = Last(self._scaling.scale(opt))
        return {**params, **after}, flat, metrics

    def _optimizer_state(self, opt: Flat, trained: Flat) -> Any:
        """Returns optax's state from the flat one, without what is the learner's own."""
        mine = {RATE_FACTOR, *(SCALE_NAMES if self._scaling is not None else ())}
        own = {path: leaf for path, leaf in opt.items() if path not in mine}
        own = own if self._average is None else without_average(own)
        like = self._structure(trained)
        if self._storing is not None:
            own = self._storing.decode(own, to_flat(like))
        return from_flat(like, own)

    def _rate(self, count: jax.Array) -> jax.Array:
        """Returns the schedule's rate; the one that `update` reports isn't computed again."""
        if self._reported is not None and self._reported[0] is count:
            return self._reported[1]
        return self._scheduled(count)

    def _scheduled(self, count: jax.Array) -> jax.Array:
        """Returns the schedule's rate, times what services made of it."""
        rate: jax.Array = self._schedule(count)
        return rate if self._factor is None else rate * self._factor

    def _structure(self, params: Mapping[str, Any]) -> Any:
        """Returns optax's state as shapes: its structure isn't stored on disk, since it changes with optax."""
        key = tuple((path, leaf.shape, leaf.dtype) for path, leaf in params.items())
        if key not in self._structures:
            shapes = {path: jax.ShapeDtypeStruct(shape, dtype) for path, shape, dtype in key}
            self._structures[key] = jax.eval_shape(self._transform.init, shapes)
        return self._structures[key]

    def _trained(self, flat: Mapping[str, jax.Array]) -> Flat:
        return {path: flat[path] for path in self.specs}

    def _clipped(self, grads: Flat, norm: jax.Array) -> Flat:
        """Returns the gradients scaled down to the clip norm, unchanged below it."""
        if self._clip_norm is None:
            return grads
        # A norm of 0 gives infinity, and the minimum 1; a NaN stays one, and the loop stops at the loss it makes.
        scale = jnp.minimum(1.0, self._clip_norm / norm)
        return {path: grad * scale.astype(grad.dtype) for path, grad in grads.items()}


def global_norm(arrays: Flat) -> jax.Array:
    """Returns the Euclidean norm over all elements, summed in fp32."""
    # In fp32: bf16 gradients of a large model overflow when squared, and lose small ones when summed.
    squares = [jnp.sum(jnp.square(array.astype(jnp.float32))) for array in arrays.values()]
    return jnp.sqrt(jnp.sum(jnp.stack(squares)) if squares else jnp.zeros((), jnp.float32))
