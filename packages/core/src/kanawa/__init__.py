"""Kanawa trains and serves large models by fitting independently versioned packages together.

Every public name is here and is imported when first used: `import kanawa` alone loads no
third-party module. To add a name, write it in `_NAMES` and in the block for type checkers.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kanawa._version import __version__ as __version__

if TYPE_CHECKING:
    from kanawa import foreign as foreign
    from kanawa.api.experiment import Experiment as Experiment
    from kanawa.api.experiment import experiment as experiment
    from kanawa.api.kernels import kernels as kernels
    from kanawa.api.plan import Plan as Plan
    from kanawa.api.plan import plan as plan
    from kanawa.api.runs import open as open
    from kanawa.api.runs import train as train
    from kanawa.api.show import show as show
    from kanawa.arrays.constrain import constrain as constrain
    from kanawa.arrays.init import fan_in_normal as fan_in_normal
    from kanawa.arrays.init import normal as normal
    from kanawa.arrays.init import ones as ones
    from kanawa.arrays.init import zeros as zeros
    from kanawa.arrays.plan import ExecutionPlan as ExecutionPlan
    from kanawa.arrays.plan import current_plan as current_plan
    from kanawa.arrays.plan import use_plan as use_plan
    from kanawa.arrays.precision import Precision as Precision
    from kanawa.arrays.spec import ParamSpec as ParamSpec
    from kanawa.composition import compose as compose
    from kanawa.composition.target import Target as Target
    from kanawa.composition.target import parse_target as parse_target
    from kanawa.config import FROM_PARENT as FROM_PARENT
    from kanawa.config import REQUIRED as REQUIRED
    from kanawa.config import CallableConfig as CallableConfig
    from kanawa.config import Config as Config
    from kanawa.config import Configurable as Configurable
    from kanawa.config import Count as Count
    from kanawa.config import Epsilon as Epsilon
    from kanawa.config import Finite as Finite
    from kanawa.config import Fraction as Fraction
    from kanawa.config import Modifier as Modifier
    from kanawa.config import NonNegative as NonNegative
    from kanawa.config import Partial as Partial
    from kanawa.config import Positive as Positive
    from kanawa.config import Range as Range
    from kanawa.config import Seed as Seed
    from kanawa.config import Size as Size
    from kanawa.config import config_for as config_for
    from kanawa.config import diff as diff
    from kanawa.config import digest as digest
    from kanawa.config import from_json as from_json
    from kanawa.config import origin as origin
    from kanawa.config import replace as replace
    from kanawa.config import to_json as to_json
    from kanawa.config import to_text as to_text
    from kanawa.contracts import Program as Program
    from kanawa.errors import KanawaError as KanawaError
    from kanawa.module import Context as Context
    from kanawa.module import Last as Last
    from kanawa.module import Max as Max
    from kanawa.module import Mean as Mean
    from kanawa.module import Module as Module
    from kanawa.module import Outputs as Outputs
    from kanawa.module import Sum as Sum
    from kanawa.module import call_name as call_name
    from kanawa.module import cond as cond
    from kanawa.module import current_context as current_context
    from kanawa.module import custom_vjp as custom_vjp
    from kanawa.module import functional as functional
    from kanawa.module import grad as grad
    from kanawa.module import initial_state as initial_state
    from kanawa.module import initialize as initialize
    from kanawa.module import jit as jit
    from kanawa.module import next_state as next_state
    from kanawa.module import nowrap as nowrap
    from kanawa.module import param_specs as param_specs
    from kanawa.module import remat as remat
    from kanawa.module import scan as scan
    from kanawa.module import shard_map as shard_map
    from kanawa.module import state_specs as state_specs
    from kanawa.module import value_and_grad as value_and_grad
    from kanawa.module import vmap as vmap
    from kanawa.module import while_loop as while_loop
    from kanawa.plugins import component as component
    from kanawa.plugins import hookimpl as hookimpl
    from kanawa.plugins import host as host

# Module of core to the public names it holds.
_NAMES = {
    "api.experiment": "Experiment experiment",
    "api.kernels": "kernels",
    "api.plan": "Plan plan",
    "api.runs": "open train",
    "api.show": "show",
    "arrays.constrain": "constrain",
    "arrays.init": "fan_in_normal normal ones zeros",
    "arrays.plan": "ExecutionPlan current_plan use_plan",
    "arrays.precision": "Precision",
    "arrays.spec": "ParamSpec",
    "composition": "compose",
    "composition.target": "Target parse_target",
    "config": (
        "FROM_PARENT REQUIRED CallableConfig Config Configurable Count Epsilon Finite Fraction Modifier NonNegative "
        "Partial Positive Range Seed Size config_for diff digest from_json origin replace to_json to_text"
    ),
    "contracts": "Program",
    "errors": "KanawaError",
    "module": (
        "Context Last Max Mean Module Outputs Sum "
        "call_name cond current_context custom_vjp functional grad initial_state "
        "initialize jit next_state nowrap param_specs remat scan shard_map state_specs value_and_grad vmap while_loop"
    ),
    "plugins": "component host hookimpl",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
# Subpackages that are public as a whole.
_PACKAGES = ("foreign",)
# Functions named like a subpackage: the package can be called.
_CALLED = ("kernels",)
__all__ = sorted([*_HOME, *_PACKAGES, "__version__"])


def __getattr__(name: str) -> Any:
    """Imports a public name on first use and keeps it."""
    if name in (*_PACKAGES, *_CALLED):
        return import_module(f"kanawa.{name}")
    if name not in _HOME:
        message = f"module 'kanawa' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(f"kanawa.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists the public names and the loaded submodules."""
    return sorted({*__all__, *globals()})


class _CalledPackage(ModuleType):
    """A subpackage that is also a function of the facade: `from kanawa.kernels import Kernel`, and `kn.kernels(…)`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function of this name in `kanawa.api`."""
        name = self.__name__.rpartition(".")[2]
        return getattr(import_module(f"kanawa.api.{name}"), name)(*args, **kwargs)


class _Facade(ModuleType):
    """Makes such a subpackage callable when the import system binds it here, in whatever order things are imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CALLED and type(value) is ModuleType:
            value.__class__ = _CalledPackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Facade
