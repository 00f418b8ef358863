"""From metadata to a working set of plugins: imports them, registers them, gives each its state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pluggy import PluginManager

from kanawa.plugins import claims
from kanawa.plugins.discovery import Provider
from kanawa.plugins.failure import Failure
from kanawa.plugins.loading import load_value
from kanawa.plugins.registration import assemble
from kanawa.plugins.states import ComponentState, PluginState, State

LOCAL = "local"


def start_plugins(
    providers: Iterable[Provider], local: dict[str, object], skip: frozenset[str]
) -> tuple[PluginManager, dict[str, PluginState]]:
    """Returns a manager with every plugin that works, and all states by full name in calling order.

    Args:
        providers: what is installed.
        local: plugin objects of the user's own, by name.
        skip: what KANAWA_SKIP_PLUGINS names.
    """
    states = _by_key(claims.plugin_states(providers, skip))
    objects: dict[str, object] = {}
    for name, plugin in local.items():
        state = PluginState(name=name, value="", distribution=LOCAL, version="")
        states[state.key], objects[state.key] = state, plugin
    priorities: dict[str, int] = {}
    for key, state in states.items():
        if state.state is State.AVAILABLE:
            try:
                plugin = objects[key] if key in objects else load_value(state.value)
                priorities[key] = int(getattr(plugin, "PRIORITY", 0))
            except (Exception, SystemExit) as error:
                states[key] = broken(state, Failure.of(error))
            else:
                objects[key] = plugin
                states[key] = replace(state, state=State.LOADED)
    order = sorted(states, key=lambda k: (priorities.get(k, 0), states[k].distribution, states[k].name, k))
    manager, failures = assemble({k: objects[k] for k in order if k in priorities})
    for key, failure in failures.items():
        states[key] = broken(states[key], failure)
    return manager, {key: states[key] for key in order}


def list_components(
    providers: Iterable[Provider], plugins: Iterable[PluginState], skip: frozenset[str]
) -> list[ComponentState]:
    """Returns the components in metadata; a broken plugin breaks its distribution's."""
    failed = {state.distribution: state for state in plugins if state.state is State.BROKEN}
    listed = []
    for state in claims.component_states(providers, skip):
        plugin = failed.get(state.distribution)
        if plugin is not None and state.state is State.AVAILABLE:
            reason = f"its plugin {plugin.name} is broken: {plugin.reason}"
            state = replace(state, state=State.BROKEN, reason=reason)
        listed.append(state)
    return listed


def broken(state: PluginState, failure: Failure, hook: str = "") -> PluginState:
    """Returns the state of a plugin that failed, in `hook` if that is where it happened."""
    reason = f"{hook}: {failure.reason}" if hook else failure.reason
    return replace(state, state=State.BROKEN, reason=reason, traceback=failure.traceback)


def _by_key(states: list[PluginState]) -> dict[str, PluginState]:
    """Maps full names to states, adding the value where a distribution claims one name twice."""
    keys = [state.key for state in states]
    return {state.key if keys.count(state.key) == 1 else f"{state.key}={state.value}": state for state in states}
