"""The catalog of components: finds one by kind and name, imports it then and not before."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from kanawa.errors import INTERRUPTIONS, PluginError, UnknownNameError, did_you_mean
from kanawa.plugins.discovery import CORE, normalise, packages_by_extra
from kanawa.plugins.states import ComponentState, Failure, State
from kanawa.status import stage


class Catalog:
    """Component states and loaded objects.

    Args:
        states: what is catalogued.
        installed: distribution to version, for messages.
    """

    def __init__(self, states: Iterable[ComponentState], installed: Mapping[str, str]) -> None:
        """Loads nothing yet."""
        self._states = sorted(states, key=lambda s: (s.kind, s.name, s.distribution, s.value))
        self._installed = dict(installed)
        self._objects: dict[int, Any] = {}  # position in _states to loaded object

    def states(self, kind: str | None = None) -> list[ComponentState]:
        """Returns all components, or one kind's, sorted by kind, name and distribution."""
        return [state for state in self._states if kind in (None, state.kind)]

    def load(self, kind: str, name: str) -> Any:
        """Returns the object called `name`, or `distribution:name` where several claim the name.

        Raises UnknownNameError if nothing is called so, PluginError if it can't be used.
        """
        position = self._position(kind, name)
        if position not in self._objects:
            state = self._states[position]
            try:
                with stage(f"importing {state.name}"):
                    self._objects[position] = load_value(state.value)
            except INTERRUPTIONS:
                raise
            except BaseException as error:
                self._states[position] = state.broken(Failure.from_error(error))
                raise PluginError(_unusable(self._states[position])) from error
            if state.state is State.AVAILABLE:
                self._states[position] = replace(state, state=State.LOADED)
        return self._objects[position]

    def locate(self, component: object) -> ComponentState | None:
        """Returns the component that an object is, even if it was imported by other means."""
        for position, loaded in self._objects.items():
            if loaded is component:
                return self._states[position]
        # By name, for an object that was imported and not loaded from here: loading everything to compare would be
        # slow.
        value = f"{getattr(component, '__module__', '')}:{getattr(component, '__qualname__', '')}"
        return next((state for state in self._states if state.value == value), None)

    def _position(self, kind: str, name: str) -> int:
        distribution, _, bare = name.rpartition(":")
        claimants = {
            position: state
            for position, state in enumerate(self._states)
            if (state.kind, state.name) == (kind, bare)
            and normalise(distribution) in ("", normalise(state.distribution))
        }
        if not claimants:
            raise UnknownNameError(self._unknown(kind, name))
        in_conflict = any(state.state is State.CONFLICT for state in claimants.values())
        if in_conflict and (not distribution or len(claimants) > 1):
            raise PluginError(_ambiguous(kind, bare, claimants.values()))
        # In conflict only with a distribution named: without one the line above has raised.
        usable = [p for p, s in claimants.items() if s.state.usable or s.state is State.CONFLICT]
        if not usable:
            raise PluginError("\n".join(_unusable(state) for state in claimants.values()))
        return usable[0]

    def _unknown(self, kind: str, name: str) -> str:
        kinds = {state.kind for state in self._states}
        lines = [f"no installed distribution provides {name!r} of kind {kind!r}"]
        lines[0] += did_you_mean(name, (state.name for state in self.states(kind)))
        if kind not in kinds and kinds:
            lines.append(f"nothing of kind {kind!r} is installed{did_you_mean(kind, kinds)}")
        elsewhere = sorted({state.kind for state in self._states if state.name == name} - {kind})
        if elsewhere:
            lines.append(f"there is a {name!r} of kind {', '.join(elsewhere)}")
        return "\n".join([*lines, *installation_hint(self._installed)])


def load_value(value: str) -> Any:
    """Returns the object at "module:attribute.path", or the module if there is no attribute.

    Raises ImportError, also for a missing attribute, and whatever importing the module raises.
    """
    module_name, _, attributes = value.partition(":")
    value_there: Any = import_module(module_name.strip())
    for attribute in filter(None, attributes.strip().split(".")):
        try:
            value_there = getattr(value_there, attribute)
        except AttributeError as error:
            message = f"{value}: {error}"
            raise ImportError(message) from error
    return value_there


def installation_hint(installed: Mapping[str, str]) -> list[str]:
    """Returns lines that say what is installed and what could be."""
    present = ", ".join(f"{name} {version}" for name, version in sorted(installed.items()))
    lines = [f"installed: {present or 'no distribution with kanawa components'}"]
    return [*lines, *missing_packages(installed), "`kanawa list` shows every component"]


def missing_packages(installed: Collection[str]) -> list[str]:
    """Returns a line for each extra of core of which a package isn't installed, with the command that installs it."""
    lines, named = [], set(installed)
    for extra, packages in packages_by_extra().items():
        missing = [name for name in packages if name not in named]
        if missing:
            lines.append(f'not installed: {", ".join(missing)} (pip install "{CORE}[{extra}]")')
            named |= {*missing}
    return lines


def _unusable(state: ComponentState) -> str:
    where = f"{state.distribution} {state.version}"
    return f"{state.kind} component {state.name!r} of {where} is {state.state}: {state.reason}"


def _ambiguous(kind: str, name: str, claimants: Iterable[ComponentState]) -> str:
    claims = sorted(f"{state.key} ({state.version}, {state.value})" for state in claimants)
    message = f"{kind} component {name!r} is claimed more than once: {', '.join(claims)}"
    return f"{message}; say which, as distribution:{name}, or uninstall one"
