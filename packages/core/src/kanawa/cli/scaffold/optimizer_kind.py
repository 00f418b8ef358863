"""An optimizer in optax's protocol."""

from kanawa.cli.scaffold.kinds import Kind

_OPTIMIZER = '''"""$class_name: the sign of the gradient's running average."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from kanawa.arrays.spec import ParamSpec
from kanawa.contracts import Optimizer
from kanawa.contracts.optimizer import Schedule

Flat = Mapping[str, Any]


class $class_name(Optimizer):
    """Everything is keyed by parameter path; ParamSpecs say what decays and how fast it may move."""

    class Config(Optimizer.Config):
        momentum: float = 0.9
        weight_decay: float = 0.0

    def transformation(self, specs: Mapping[str, ParamSpec], learning_rate: Schedule) -> "_Transformation":
        """Returns the transformation; its state is "$package/average/…" and "$package/count"."""
        return _Transformation(self.config, specs, learning_rate)


class _State(NamedTuple):
    count: Any
    average: dict[str, Any]


class _Transformation:
    def __init__(self, cfg: Any, specs: Mapping[str, ParamSpec], learning_rate: Schedule) -> None:
        self.cfg, self.specs, self.learning_rate = cfg, specs, learning_rate

    def init(self, params: Flat) -> dict[str, _State]:
        """Returns the state, named for the checkpoint."""
        zeros = {path: jnp.zeros_like(param) for path, param in params.items()}
        return {"$package": _State(jnp.zeros((), jnp.int32), zeros)}

    def update(self, grads: Flat, state: Any, params: Flat | None = None) -> tuple[dict[str, Any], Any]:
        """Returns what to add to the parameters, and the new state."""
        before, cfg = state["$package"], self.cfg
        rate = self.learning_rate(before.count)
        average, changes = {}, {}
        for path, grad in grads.items():
            average[path] = cfg.momentum * before.average[path] + (1.0 - cfg.momentum) * grad
            change = jnp.sign(average[path])
            decay = cfg.weight_decay * self.specs[path].weight_decay
            if decay and params is not None:
                change = change + decay * params[path]
            changes[path] = -(rate * self.specs[path].lr_scale).astype(change.dtype) * change
        return changes, {"$package": _State(before.count + 1, average)}
'''

_TESTS = '''"""The plugin passes the kit that Kanawa's own packages pass."""

from kanawa.testing.optimizer import OptimizerConformance
from kanawa.testing.plugin import PluginConformance

from $package.optimizer import $class_name


class TestPlugin(PluginConformance):
    distribution = "$distribution"


class Test$class_name(OptimizerConformance):
    def config(self):
        return $class_name.Config()
'''

KIND = Kind(
    sources={"optimizer.py": _OPTIMIZER},
    entry_points={"optimizers": {"$distribution": "optimizer:$class_name"}},
    conformance=_TESTS,
    usage="kanawa train quickstart --modify optimizer:name=$distribution --run runs/$distribution",
)
