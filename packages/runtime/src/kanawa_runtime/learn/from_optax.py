"""Any optax transformation as an optimizer: `kn.config_for(optax.adamw, …)` in the learner's slot."""

from collections.abc import Mapping
from typing import Any

import jax
import kanawa as kn
import optax
from kanawa.arrays.spec import ParamSpec
from kanawa.contracts import Optimizer
from kanawa.contracts.optimizer import Schedule
from kanawa.errors import ConfigError

_RATE, _MASK = "learning_rate", "mask"


class FromOptax(Optimizer):
    """Builds `transform`, however deep in chains its parts are.

    A part with `learning_rate=kn.FROM_PARENT` follows the learner's schedule, one with a number or a schedule of its
    own doesn't. `mask=kn.FROM_PARENT` masks what doesn't decay by the layers' own say, such as norms. A parameter's
    `lr_scale` multiplies its update.
    """

    class Config(Optimizer.Config):
        transform: kn.CallableConfig = kn.REQUIRED

    def transformation(self, specs: Mapping[str, ParamSpec], learning_rate: Schedule) -> optax.GradientTransformation:
        """Returns the transformation; its state is named as optax nests it: "0/mu/…", "0/count"."""
        decays = {path: spec.weight_decay != 0 for path, spec in specs.items()}
        offered = {_RATE: learning_rate, _MASK: decays}
        open_ = self._left_open()
        built = self.config.transform.build(**{name: value for name, value in offered.items() if name in open_})
        if not (callable(getattr(built, "init", None)) and callable(getattr(built, "update", None))):
            message = (
                f"the optimizer's {self.config.transform.callee.__qualname__} returned {type(built).__name__}, "
                f"expected an optax transformation, which has init and update"
            )
            raise ConfigError(message)
        scales = {path: spec.lr_scale for path, spec in specs.items() if spec.lr_scale != 1}
        return _scaled(built, scales) if scales else built

    def num_updates(self, opt: Mapping[str, jax.Array]) -> jax.Array | None:
        """Returns a count of the state, where the transformation follows the learner's schedule and keeps one."""
        if _RATE not in self._left_open():
            return None
        return next((array for path, array in opt.items() if path.endswith("/count")), None)

    def _left_open(self) -> set[str]:
        nodes = [node for _, node in self.config.transform.walk()]
        return {name for node in nodes for name, value in vars(node).items() if value is kn.FROM_PARENT}


def _scaled(inner: optax.GradientTransformation, scales: Mapping[str, float]) -> optax.GradientTransformation:
    """Multiplies the updates of some parameters; the state is the inner one's, under the same names."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        changes, state = inner.update(updates, state, params)
        return {path: x * scales[path] if path in scales else x for path, x in changes.items()}, state

    return optax.GradientTransformation(inner.init, update)
