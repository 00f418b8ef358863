"""The catalog of components: finds one by kind and name, imports it then and not before."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kanawa.errors import INTERRUPTIONS, AmbiguousNameError, PluginError, UnknownNameError, did_you_mean
from kanawa.plugins.discovery import CORE, normalise, own_packages, packages_by_extra
from kanawa.plugins.states import SKIP_VARIABLE, ComponentState, Failure, State
from kanawa.status import stage

if TYPE_CHECKING:
    from kanawa.plugins.records import Kind


_MOST_NAMED = 5


class Catalog:
    """Component states and loaded objects.

    Args:
        states: what is catalogued.
        installed: distribution to version, for messages.
        kinds: name to kind, whose role a component must play.
    """

    def __init__(
        self, states: Iterable[ComponentState], installed: Mapping[str, str], kinds: Mapping[str, Kind] | None = None
    ) -> None:
        """Loads nothing yet."""
        self._kinds = dict(kinds or {})
        self._states = sorted(states, key=lambda s: (s.kind, s.name, s.distribution, s.value))
        self._installed = dict(installed)
        self._objects: dict[int, Any] = {}  # position in _states to loaded object

    def states(self, kind: str | None = None) -> list[ComponentState]:
        """Returns all components, or one kind's, sorted by kind, name and distribution."""
        return [state for state in self._states if kind in (None, state.kind)]

    def load(self, kind: str, name: str, asker: str = "") -> Any:
        """Returns the object called `name`, or `distribution:name` where several claim the name.

        `asker` is the distribution whose code or data has the name, if no user wrote it: of several claimants its own
        is meant, else the one of Kanawa's packages.
        Raises UnknownNameError if nothing is called so, PluginError if it can't be used.
        """
        position = self._position(kind, name, asker)
        if position not in self._objects:
            state = self._states[position]
            try:
                with stage(f"importing {state.name}"):
                    loaded = load_value(state.value)
            except INTERRUPTIONS:
                raise
            except BaseException as error:
                self._states[position] = state.broken(Failure.from_error(error))
                raise PluginError(_unusable(self._states[position])) from error
            if problem := _role_problem(self._kinds.get(kind), loaded):
                self._states[position] = state.broken(Failure(problem))
                raise PluginError(_unusable(self._states[position]))
            self._objects[position] = loaded
            if state.state is State.AVAILABLE:
                self._states[position] = replace(state, state=State.LOADED)
        return self._objects[position]

    def spelled(self, kind: str, name: str, asker: str) -> str:
        """Returns what to write for the component that `asker` means by a name: `distribution:name` in a conflict."""
        state = self._states[self._position(kind, name, asker)]
        return state.key if state.state is State.CONFLICT else state.name

    def locate(self, component: object) -> ComponentState | None:
        """Returns the component that an object is, even if it was imported by other means."""
        for position, loaded in self._objects.items():
            if loaded is component:
                return self._states[position]
        # By name, for an object that was imported and not loaded from here: loading everything to compare would be
        # slow.
        value = f"{getattr(component, '__module__', '')}:{getattr(component, '__qualname__', '')}"
        return next((state for state in self._states if state.value == value), None)

    def _position(self, kind: str, name: str, asker: str) -> int:
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
            meant = _meant(claimants, asker)
            if meant is None:
                raise AmbiguousNameError(ambiguous(claimants.values()))
            return meant
        # In conflict only with a distribution named: without one the line above has raised.
        usable = [p for p, s in claimants.items() if s.state.usable]
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


def _role_problem(kind: Kind | None, loaded: object) -> str:
    """Returns what keeps a loaded component from being what its kind promises; empty if nothing does."""
    try:
        base = load_value(kind.subclass_of) if kind is not None and kind.subclass_of else object
        role = load_value(kind.instance_of) if kind is not None and kind.instance_of else object
    except ImportError:
        return ""  # The role's package isn't installed, or lacks a library.
    if base is not object and not (isinstance(loaded, type) and issubclass(loaded, base)):
        return f"it is {loaded!r}, expected a subclass of {base.__name__}"
    return "" if isinstance(loaded, role) else f"it is {loaded!r}, expected a {role.__name__}"


def _unusable(state: ComponentState) -> str:
    where = f"{state.distribution} {state.version}"
    advice = f"; {SKIP_VARIABLE}={state.key} leaves it out" if state.state is State.BROKEN else ""
    return f"{state.kind} component {state.name!r} of {where} is {state.state}: {state.reason}{advice}"


def _meant(claimants: Mapping[int, ComponentState], asker: str) -> int | None:
    """Returns which of several claimants the code or data of `asker` means by a bare name; None where it's unclear."""
    candidates = {p: s.distribution for p, s in claimants.items() if s.state is State.CONFLICT and asker}
    own = [position for position, distribution in candidates.items() if distribution == asker]
    ours = [position for position, distribution in candidates.items() if distribution in own_packages()]
    return next((group[0] for group in (own, ours) if len(group) == 1), None)


def ambiguous(claimants: Iterable[ComponentState]) -> str:
    """Returns the message for components that claim one name, with the ways to choose."""
    states = sorted(claimants, key=lambda state: (state.distribution not in own_packages(), state.key, state.value))
    claims = ", ".join(f"{state.key} ({state.version}, {state.value})" for state in states)
    message = f"{states[0].label} {states[0].name!r} is claimed more than once: {claims}"
    return f"{message}; say which, as distribution:{states[0].name}, or leave one out: {SKIP_VARIABLE}={states[-1].key}"


def collisions(claims: Iterable[Sequence[ComponentState]]) -> list[str]:
    """Returns one line for each set of distributions that claim the same names, however many these are."""
    groups: dict[tuple[str, ...], list[Sequence[ComponentState]]] = {}
    for claimants in claims:
        groups.setdefault(tuple(sorted({state.distribution for state in claimants})), []).append(claimants)
    lines = []
    for distributions, claimed in groups.items():
        if len(claimed) == 1:
            lines.append(ambiguous(claimed[0]))
            continue
        first, *others = (f"{states[0].label} {states[0].name!r}" for states in claimed)
        named = ", ".join([first, *others][:_MOST_NAMED]) + (", …" if len(claimed) > _MOST_NAMED else "")
        stranger = next((d for d in distributions if d not in own_packages()), distributions[-1])
        lines.append(
            f"{len(claimed)} names are claimed by {' and by '.join(distributions)}: {named}; say which, as "
            f"distribution:name, or leave one out: {SKIP_VARIABLE}={stranger}"
        )
    return lines
