"""The plugin host: records and markers for plugin authors, the catalog for everyone else.

A plugin module imports `hookimpl` and the records from here and nothing else but the standard
library. Importing this package loads no third-party module: each name is resolved on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kanawa.plugins.backend import Backend as Backend
    from kanawa.plugins.catalog import compare_plugin_sets as compare_plugin_sets
    from kanawa.plugins.catalog import plugin_set_digest as plugin_set_digest
    from kanawa.plugins.manager import PluginHost as PluginHost
    from kanawa.plugins.manager import component as component
    from kanawa.plugins.manager import host as host
    from kanawa.plugins.manager import set_host as set_host
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
    from kanawa.plugins.specs import hookimpl as hookimpl
    from kanawa.plugins.specs import hookspec as hookspec
    from kanawa.plugins.states import ComponentState as ComponentState
    from kanawa.plugins.states import PluginState as PluginState

_HOME = {
    "compare_plugin_sets": "catalog",
    "component": "manager",
    "plugin_set_digest": "catalog",
    "Backend": "backend",
    "PluginHost": "manager",
    "host": "manager",
    "set_host": "manager",
    "hookimpl": "specs",
    "hookspec": "specs",
    "Calibration": "records",
    "Command": "records",
    "CommandOptions": "records",
    "Component": "records",
    "DeviceSpec": "records",
    "Finding": "records",
    "FittedStep": "records",
    "Kind": "records",
    "MeshRule": "records",
    "ProgramTraits": "records",
    "PublishedStep": "records",
    "Purpose": "records",
    "KernelHalf": "schedules",
    "KernelSchedule": "schedules",
    "RecordedCycles": "schedules",
    "Region": "schedules",
    "ScheduleRequest": "schedules",
    "ComponentState": "states",
    "PluginState": "states",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Resolves a public name on first use."""
    if name not in _HOME:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """Lists the public names."""
    return __all__
