"""The plugin host: records and markers for plugin authors, the catalog for everyone else.

A plugin module imports `hookimpl` and the records from here and nothing else but the standard
library. Importing this package loads no third-party module: what needs one is resolved on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kanawa.plugins.records import Calibration as Calibration
from kanawa.plugins.records import Command as Command
from kanawa.plugins.records import CommandOptions as CommandOptions
from kanawa.plugins.records import Component as Component
from kanawa.plugins.records import DeviceSpec as DeviceSpec
from kanawa.plugins.records import Finding as Finding
from kanawa.plugins.records import FittedStep as FittedStep
from kanawa.plugins.records import Kind as Kind
from kanawa.plugins.records import MeshRule as MeshRule
from kanawa.plugins.records import ProgramTraits as ProgramTraits
from kanawa.plugins.records import PublishedStep as PublishedStep
from kanawa.plugins.records import Purpose as Purpose
from kanawa.plugins.schedules import KernelHalf as KernelHalf
from kanawa.plugins.schedules import KernelSchedule as KernelSchedule
from kanawa.plugins.schedules import RecordedCycles as RecordedCycles
from kanawa.plugins.schedules import Region as Region
from kanawa.plugins.schedules import ScheduleRequest as ScheduleRequest
from kanawa.plugins.states import ComponentState as ComponentState

if TYPE_CHECKING:
    from kanawa.plugins.asking import ask_each as ask_each
    from kanawa.plugins.backend import Backend as Backend
    from kanawa.plugins.manager import PluginHost as PluginHost
    from kanawa.plugins.manager import component as component
    from kanawa.plugins.manager import host as host
    from kanawa.plugins.manager import set_host as set_host
    from kanawa.plugins.specs import hookimpl as hookimpl
    from kanawa.plugins.specs import hookspec as hookspec

_LAZY = {
    "Backend": "backend",
    "PluginHost": "manager",
    "ask_each": "asking",
    "component": "manager",
    "host": "manager",
    "set_host": "manager",
    "hookimpl": "specs",
    "hookspec": "specs",
}


def __getattr__(name: str) -> Any:
    """Resolves a public name on first use."""
    if name not in _LAZY:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
