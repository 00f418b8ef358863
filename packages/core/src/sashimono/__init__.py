"""Sashimono trains and serves large models by fitting independently versioned packages together.

Every public name is here and is imported when first used: `import sashimono` alone loads no
third-party module. To add a name, write it in `_NAMES` and in the block for type checkers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sashimono._version import __version__ as __version__

if TYPE_CHECKING:
    from sashimono.arrays.constrain import constrain as constrain
    from sashimono.arrays.init import fan_in_normal as fan_in_normal
    from sashimono.arrays.init import normal as normal
    from sashimono.arrays.init import ones as ones
    from sashimono.arrays.init import zeros as zeros
    from sashimono.arrays.plan import ExecutionPlan as ExecutionPlan
    from sashimono.arrays.plan import current_plan as current_plan
    from sashimono.arrays.plan import use_plan as use_plan
    from sashimono.arrays.precision import Precision as Precision
    from sashimono.arrays.spec import ParamSpec as ParamSpec
    from sashimono.compose import compose as compose
    from sashimono.compose.target import Target as Target
    from sashimono.compose.target import parse_target as parse_target
    from sashimono.config import FROM_PARENT as FROM_PARENT
    from sashimono.config import REQUIRED as REQUIRED
    from sashimono.config import Config as Config
    from sashimono.config import Configurable as Configurable
    from sashimono.config import Modifier as Modifier
    from sashimono.config import config_for as config_for
    from sashimono.config import diff as diff
    from sashimono.config import digest as digest
    from sashimono.config import from_json as from_json
    from sashimono.config import origin as origin
    from sashimono.config import replace as replace
    from sashimono.config import to_json as to_json
    from sashimono.config import to_text as to_text
    from sashimono.contracts import Program as Program
    from sashimono.errors import SashimonoError as SashimonoError
    from sashimono.module import Context as Context
    from sashimono.module import Flat as Flat
    from sashimono.module import Foreign as Foreign
    from sashimono.module import Joined as Joined
    from sashimono.module import Last as Last
    from sashimono.module import Matrix as Matrix
    from sashimono.module import Max as Max
    from sashimono.module import Mean as Mean
    from sashimono.module import Module as Module
    from sashimono.module import Outputs as Outputs
    from sashimono.module import Permuted as Permuted
    from sashimono.module import Sliced as Sliced
    from sashimono.module import Sum as Sum
    from sashimono.module import Tensor as Tensor
    from sashimono.module import call_name as call_name
    from sashimono.module import cond as cond
    from sashimono.module import current_context as current_context
    from sashimono.module import custom_vjp as custom_vjp
    from sashimono.module import foreign_table as foreign_table
    from sashimono.module import functional as functional
    from sashimono.module import initial_state as initial_state
    from sashimono.module import initialize as initialize
    from sashimono.module import jit as jit
    from sashimono.module import next_state as next_state
    from sashimono.module import nowrap as nowrap
    from sashimono.module import param_specs as param_specs
    from sashimono.module import remat as remat
    from sashimono.module import scan as scan
    from sashimono.module import shard_map as shard_map
    from sashimono.module import state_specs as state_specs
    from sashimono.module import vmap as vmap
    from sashimono.module import while_loop as while_loop
    from sashimono.plugins import component as component
    from sashimono.plugins import hookimpl as hookimpl
    from sashimono.plugins import host as host

# Module of core to the public names it holds.
_NAMES = {
    "arrays.constrain": "constrain",
    "arrays.init": "fan_in_normal normal ones zeros",
    "arrays.plan": "ExecutionPlan current_plan use_plan",
    "arrays.precision": "Precision",
    "arrays.spec": "ParamSpec",
    "compose": "compose",
    "compose.target": "Target parse_target",
    "config": (
        "FROM_PARENT REQUIRED Config Configurable Modifier config_for diff digest "
        "from_json origin replace to_json to_text"
    ),
    "contracts": "Program",
    "errors": "SashimonoError",
    "module": (
        "Context Flat Foreign Joined Last Matrix Max Mean Module Outputs Permuted Sliced Sum Tensor "
        "call_name cond current_context custom_vjp foreign_table functional initial_state "
        "initialize jit next_state nowrap param_specs remat scan shard_map state_specs vmap while_loop"
    ),
    "plugins": "component host hookimpl",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    """Imports a public name on first use and keeps it."""
    if name not in _HOME:
        message = f"module 'sashimono' has no attribute {name!r}"
        raise AttributeError(message)
    module = import_module(f"sashimono.{_HOME[name]}")
    if _HOME[name] == name:  # `sashimono.compose` is a package that can be called, see there
        return module
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists the public names and the loaded submodules."""
    return sorted({*__all__, *globals()})
