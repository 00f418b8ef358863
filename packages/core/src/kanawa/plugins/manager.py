"""The plugin host: calls hooks one at a time and keeps a bad plugin from harming others.

The process has one, `host()`: the one piece of module-level mutable state in core.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kanawa.config import connect_catalog
from kanawa.errors import INTERRUPTIONS, KanawaError, PluginError
from kanawa.plugins.catalog import Catalog, collisions
from kanawa.plugins.discovery import Provider, discover
from kanawa.plugins.kinds import merge_kinds
from kanawa.plugins.records import Kind
from kanawa.plugins.states import (
    SKIP_VARIABLE,
    ComponentState,
    Failure,
    State,
    mark_conflicts,
    misspelt,
    parse_skip,
    refused_code,
)

if TYPE_CHECKING:
    from pluggy import PluginManager

OBSERVER_FAILURES_ALLOWED = 3

_log = logging.getLogger(__name__)


@dataclass
class _Running:
    """What is known once plugins are discovered and registered."""

    manager: PluginManager
    plugins: dict[str, ComponentState]  # full name to state, in calling order
    versions: dict[str, str]  # distribution to version
    catalog: Catalog
    refused: dict[str, str]  # top-level package, or "module:object", to why a config may not import it
    observer_failures: Counter[str] = field(default_factory=Counter)
    warned: set[str] = field(default_factory=set)


class PluginHost:
    """Holds every plugin and component with its state; discovers once, when first asked.

    Args:
        discover: reads metadata; a test may pass its own.
    """

    def __init__(self, discover: Callable[[], list[Provider]] = discover) -> None:
        """Discovers nothing yet."""
        self._discover = discover
        self._local: dict[str, object] = {}
        self._running: _Running | None = None
        self._starting = False
        # Reentrant: a plugin's module that asks the host while it is being loaded gets an error, not a deadlock.
        self._lock = threading.RLock()

    def plugins(self) -> list[ComponentState]:
        """Returns every plugin module with its state, in calling order."""
        return list(self._start().plugins.values())

    def components(self, kind: str | None = None) -> list[ComponentState]:
        """Returns all components, or one kind's, with their states."""
        return self._start().catalog.states(kind)

    def kinds(self) -> dict[str, Kind]:
        """Returns core's kinds of component and those that plugins declare, by name; warns of a clash."""
        kinds, clashes = merge_kinds(self.collect("kanawa_kinds"))
        for clash in clashes:
            self.warn(clash)
        return kinds

    def load(self, kind: str, name: str, asker: str = "") -> Any:
        """Returns a catalogued object, importing it now; see `Catalog.load`."""
        return self._start().catalog.load(kind, name, asker)

    def loaded(self, kind: str) -> list[tuple[ComponentState, Any]]:
        """Returns every usable component of a kind with its object; one that can't be loaded is warned of, once."""
        found = []
        for state in self.components(kind):
            if state.state.usable:
                try:
                    found.append((state, self.load(kind, state.key)))
                except PluginError as error:
                    self.warn(str(error))
        return found

    def spelled(self, kind: str, name: str, asker: str) -> str:
        """Returns what to write for the component that a distribution means by a name; see `Catalog.load`."""
        return self._start().catalog.spelled(kind, name, asker)

    def locate(self, component: object) -> ComponentState | None:
        """Returns the component that an object is, or None."""
        return self._start().catalog.locate(component)

    def name_of(self, component: object) -> str | None:
        """Returns an object's catalog name (with its distribution if in conflict), or None."""
        state = self.locate(component)
        if state is None:
            return None
        return state.key if state.state is State.CONFLICT else state.name

    def refusal(self, value: str) -> str:
        """Returns why the config may not import "module:object": its plugin is skipped or doesn't fit; else empty."""
        if self._starting:  # a plugin module that reads a config while it is imported
            return ""
        refused = self._start().refused
        top = value.partition(":")[0].partition(".")[0]
        names = (name for name in (top, value, value.rpartition(".")[0]) if name in refused)
        return next((refused[name] for name in names), "")

    def installed(self) -> dict[str, str]:
        """Returns distribution to version for all that offer anything, usable or not."""
        return dict(self._start().versions)

    def plugin_set(self) -> dict[str, str]:
        """Returns distribution to version for all that offer something that can be used."""
        running = self._start()
        # A component in conflict can still be selected, so its distribution takes part.
        states = [*running.plugins.values(), *running.catalog.states()]
        usable = {state.distribution for state in states if state.state.usable}
        return {name: v for name, v in running.versions.items() if name in usable}

    def plugin_set_digest(self) -> str:
        """Returns the digest that hosts compare before compiling."""
        return hashlib.sha256(json.dumps(self.plugin_set(), sort_keys=True).encode()).hexdigest()

    def collect(self, hook: str, **arguments: Any) -> list[tuple[str, Any]]:
        """Calls a contributing hook; returns (plugin's full name, result) where it isn't None.

        A plugin that raises becomes broken and contributes nothing more, except that a
        KanawaError from a hook with arguments is its answer and reaches the caller.
        """
        running = self._start()
        return self._collect(running.manager, running.plugins, hook, arguments)

    def notify(self, hook: str, **arguments: Any) -> None:
        """Calls an observing hook. A failure is logged once; after three, a plugin is left out."""
        from kanawa.plugins.startup import implementations

        running = self._start()
        for key, call in implementations(running.manager, hook, arguments):
            if running.observer_failures[key] < OBSERVER_FAILURES_ALLOWED:
                try:
                    call()
                except INTERRUPTIONS:
                    raise
                except BaseException as error:
                    _observer_failed(running, key, hook, error)

    def warn(self, line: str) -> None:
        """Logs a warning about plugins, each only once."""
        if line not in (warned := self._start().warned):
            warned.add(line)
            _log.warning("%s", line)

    def register(self, plugin: object, name: str) -> None:
        """Adds a plugin object of the user's own, as distribution "local"; `refresh` keeps it.

        Raises PluginError if it doesn't fit the hook specs.
        """
        self._local[name] = plugin
        self.refresh()
        state = next(s for s in self.plugins() if (s.distribution, s.name) == ("local", name))
        if state.state is not State.LOADED:
            del self._local[name]
            self.refresh()
            message = f"plugin {name!r} can't be registered: {state.state}: {state.reason}"
            raise PluginError(message)

    def refresh(self) -> None:
        """Forgets everything, so that the next question discovers again."""
        with self._lock:
            # Python's finders remember folders; a package installed while the process runs would stay unseen.
            importlib.invalidate_caches()
            self._running = None

    def _start(self) -> _Running:
        with self._lock:
            if self._running is None:
                if self._starting:
                    message = "a plugin module asked the plugin host while it was being loaded"
                    raise PluginError(message)
                self._starting = True
                try:
                    self._running = self._begin()
                finally:
                    self._starting = False
            return self._running

    def _begin(self) -> _Running:
        from kanawa.plugins.startup import list_components, start_plugins

        skip = parse_skip(os.environ.get(SKIP_VARIABLE, ""))
        providers = self._discover()
        manager, plugins = start_plugins(providers, self._local, skip)
        _report(plugins.values())
        dynamic = self._collect(manager, plugins, "kanawa_components", {})
        components = list_components(providers, plugins.values(), skip)
        components += [
            ComponentState(
                name=component.name,
                kind=component.kind,
                value=component.value,
                distribution=plugins[key].distribution,
                version=plugins[key].version,
            )
            for key, contributed in dynamic
            for component in contributed
        ]
        kinds, _ = merge_kinds(self._collect(manager, plugins, "kanawa_kinds", {}))
        components = mark_conflicts([misspelt(state, kinds) for state in components])
        # One line for a broken distribution, not one more for each of its fifty components.
        said = {s.distribution for s in plugins.values() if s.state.bad}
        claims: dict[tuple[str, str], list[ComponentState]] = {}
        for state in components:
            if state.state is State.CONFLICT:
                claims.setdefault((state.kind, state.name), []).append(state)
        for line in collisions(claims.values()):
            _log.warning("%s", line)
        _report(_one_each(s for s in components if s.distribution not in said))
        versions = {provider.name: provider.version for provider in providers}
        refused = refused_code([*plugins.values(), *components])
        return _Running(manager, plugins, versions, Catalog(components, versions, kinds), refused)

    def _collect(
        self,
        manager: PluginManager,
        plugins: dict[str, ComponentState],
        hook: str,
        arguments: dict[str, Any],
    ) -> list[tuple[str, Any]]:
        from kanawa.plugins.startup import checked_contribution, implementations

        results = []
        for key, call in implementations(manager, hook, arguments):
            try:
                result = checked_contribution(hook, call())
            except INTERRUPTIONS:
                raise
            except BaseException as error:
                if arguments and isinstance(error, KanawaError):
                    raise
                manager.unregister(name=key)
                plugins[key] = plugins[key].broken(Failure.from_error(error), hook)
                _report([plugins[key]])
            else:
                if result is not None:
                    results.append((key, result))
        return results


def _report(states: Iterable[ComponentState]) -> None:
    """Logs one line for each bad state."""
    for state in states:
        if state.state.bad:
            _log.warning("%s", state)


def _one_each(states: Iterable[ComponentState]) -> list[ComponentState]:
    """Returns what is bad for another reason than conflict, one of each distribution and reason."""
    bad = [s for s in states if s.state.bad and s.state is not State.CONFLICT]
    return list({(s.distribution, s.reason): s for s in reversed(bad)}.values())


def _observer_failed(running: _Running, key: str, hook: str, error: BaseException) -> None:
    running.observer_failures[key] += 1
    count = running.observer_failures[key]
    plugin = f"plugin {key} {running.plugins[key].version}"
    if count == 1:
        _log.warning("%s failed in %s; %s=%s leaves it out", plugin, hook, SKIP_VARIABLE, key, exc_info=error)
    if count == OBSERVER_FAILURES_ALLOWED:
        reason = f"no longer observes: failed {count} times, last in {hook}: {error}"
        _log.warning("%s %s", plugin, reason)
        running.plugins[key] = replace(running.plugins[key], reason=reason)


_current: PluginHost | None = None


def host() -> PluginHost:
    """Returns the process's plugin host. Nothing is discovered until it is asked something."""
    global _current
    if _current is None:
        _current = PluginHost()
    return _current


def set_host(new: PluginHost | None) -> PluginHost | None:
    """Replaces the process's host (None: a fresh one on next use) and returns the old one."""
    global _current
    old, _current = _current, new
    return old


def component(kind: str, name: str, asker: str = "") -> Any:
    """Returns the catalogued object, importing it now; see `Catalog.load` for names, `asker` and errors."""
    return host().load(kind, name, asker)


# Config comes before plugins and can't import them: this is what it calls before it imports what a path names.
connect_catalog(refusal=lambda value: host().refusal(value))
