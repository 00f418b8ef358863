"""What an optimizer contributes: a gradient transformation in optax's protocol, built from parameter specs."""

import abc
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kanawa.arrays.spec import ParamSpec
from kanawa.config import REQUIRED, Config, Configurable, NonNegative

#: Learning rate as a function of the count of completed updates (an int32 scalar array).
Schedule = Callable[[Any], Any]


class GradientTransformation(Protocol):
    """optax's protocol: `init(params) -> state`, `update(updates, state, params) -> (updates, state)`."""

    init: Callable[..., Any]
    update: Callable[..., Any]


class Optimizer(Configurable):
    """Builds the transformation that turns gradients into parameter updates.

    Parameters, gradients and every per-parameter state are flat dictionaries keyed by parameter path, so a
    checkpoint can name each array as `transform/path` and survive a change of optax's tuple layout.

    With `uses_curvature`, `update` takes the keyword `curvature`: a function without arguments that returns an estimate
    of the Hessian's diagonal by parameter path. It costs as much as a gradient; call it inside `jax.lax.cond`.
    """

    uses_curvature: bool = False

    @property
    def width_exponent(self) -> float | None:
        """By which power of 1 / fan_in the best rate of a hidden matrix falls with width (muP); None: unknown."""
        return None

    @property
    def moments(self) -> Mapping[str, bool]:
        """State that may be stored in fewer bits between updates, {"adam/mu": False}; True: it is never negative.

        Only averages of gradients or of their squares whose memory is short, such as those of Adam. None by default.
        """
        return {}

    @property
    def averages(self) -> bool:
        """Whether `evaluated` gives other parameters than those trained."""
        return type(self).evaluated is not Optimizer.evaluated

    @abc.abstractmethod
    def transformation(self, specs: Mapping[str, ParamSpec], learning_rate: Schedule) -> GradientTransformation:
        """Returns the transformation; `specs` give each parameter's decay, rate scale and factorisation."""

    def evaluated(self, params: Mapping[str, Any], opt: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the parameters to evaluate and serve with, which an averaging optimizer keeps beside those it trains.

        `opt` is the flat state. The parameters themselves unless overridden.
        """
        del opt
        return params

    def num_updates(self, opt: Mapping[str, Any]) -> Any | None:
        """Returns the count of completed updates in the flat state: where the schedule is read next.

        It lags behind the step where updates were skipped. None, unless overridden: then no learning rate is reported.
        """
        del opt
        return None


class ScheduleFactory(Configurable):
    """Builds a learning-rate schedule for a run of `total_steps` updates."""

    @abc.abstractmethod
    def schedule(self, total_steps: int) -> Schedule:
        """Returns a traceable function from the number of completed updates to the learning rate."""


class ParameterRule(Config):
    """Applies to every parameter whose path matches the glob `where`; later rules win.

    `lr_scale` and `weight_decay` replace the layer's own multipliers; None leaves them. A frozen parameter keeps its
    value, gets neither gradient nor optimizer state, and counts in no norm.
    """

    where: str = REQUIRED
    frozen: bool = False
    lr_scale: NonNegative | None = None
    weight_decay: NonNegative | None = None


class ParameterGroup(Config):
    """Parameters with an optimizer of their own, chosen by path and by role; a parameter may be in one group only.

    `where` are globs over paths (empty: all), `roles` narrows to roles (empty: all): "embedding" (has a vocab axis),
    "matrix" (from hidden to hidden), "expert" (such a matrix of each expert), "vector" (all else). `lr_scale` and
    `weight_decay` are as in ParameterRule. `optimizer` None uses the learner's.
    """

    name: str = REQUIRED
    where: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    optimizer: Optimizer.Config | None = None
    lr_scale: NonNegative | None = None
    weight_decay: NonNegative | None = None
