"""From metadata to working plugins: imports them, registers those that fit the hook specs, sets each one's state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pluggy import HookImpl, PluginManager, PluginValidationError

from kanawa.errors import INTERRUPTIONS, PluginError, did_you_mean
from kanawa.plugins import specs
from kanawa.plugins.catalog import load_value
from kanawa.plugins.discovery import PLUGIN_KIND, Provider
from kanawa.plugins.specs import PROJECT
from kanawa.plugins.states import ComponentState, Failure, State, first_states, mark_conflicts

LOCAL = "local"
PREFIX = f"{PROJECT}_"


def start_plugins(
    providers: Iterable[Provider], local: dict[str, object], skip: frozenset[str]
) -> tuple[PluginManager, dict[str, ComponentState]]:
    """Returns a manager with every plugin that works, and all states by full name in calling order.

    Args:
        providers: what is installed.
        local: plugin objects of the user's own, by name.
        skip: what KANAWA_SKIP_PLUGINS names.
    """
    states = _by_key(mark_conflicts([s for s in first_states(providers, skip) if s.kind == PLUGIN_KIND]))
    objects: dict[str, object] = {}
    for name, plugin in local.items():
        state = ComponentState(name=name, value="", distribution=LOCAL, version="")
        states[state.key], objects[state.key] = state, plugin
    priorities: dict[str, int] = {}
    for key, state in states.items():
        if state.state is State.AVAILABLE:
            try:
                plugin = objects[key] if key in objects else load_value(state.value)
                priorities[key] = int(getattr(plugin, "PRIORITY", 0))
            except INTERRUPTIONS:
                raise
            except BaseException as error:
                states[key] = state.broken(Failure.from_error(error))
            else:
                objects[key] = plugin
                states[key] = replace(state, state=State.LOADED)
    order = sorted(states, key=lambda k: (priorities.get(k, 0), states[k].distribution, states[k].name, k))
    manager, failures = assemble({k: objects[k] for k in order if k in priorities})
    for key, failure in failures.items():
        states[key] = states[key].broken(failure)
    return manager, {key: states[key] for key in order}


def list_components(
    providers: Iterable[Provider], plugins: Iterable[ComponentState], skip: frozenset[str]
) -> list[ComponentState]:
    """Returns the components in metadata; a broken plugin breaks its distribution's."""
    failed = {state.distribution: state for state in plugins if state.state is State.BROKEN}
    listed = []
    for state in first_states(providers, skip):
        plugin = failed.get(state.distribution)
        if plugin is not None and state.state is State.AVAILABLE:
            state = state.broken(Failure(f"its plugin {plugin.name} is broken: {plugin.reason}"))
        listed.append(state)
    return [state for state in listed if state.kind != PLUGIN_KIND]


def _by_key(states: list[ComponentState]) -> dict[str, ComponentState]:
    """Maps full names to states, adding the value where a distribution claims one name twice."""
    keys = [state.key for state in states]
    return {state.key if keys.count(state.key) == 1 else f"{state.key}={state.value}": state for state in states}


def assemble(plugins: Mapping[str, object]) -> tuple[PluginManager, dict[str, Failure]]:
    """Registers plugins (full name to object, in calling order); returns manager and failures.

    After each failure everything is put together anew without the culprit, so that nothing
    half-registered stays and no plugin suffers for another's hook specs.
    """
    failures: dict[str, Failure] = {}
    while True:
        manager = PluginManager(PROJECT)
        manager.add_hookspecs(specs)
        wanted = {key: plugin for key, plugin in plugins.items() if key not in failures}
        failed = _register(manager, wanted) or _add_specs(manager, wanted)
        failed = failed or _misfits(manager, wanted)
        if not failed:
            return manager, failures
        failures |= failed


def implementations(
    manager: PluginManager, hook: str, arguments: Mapping[str, Any]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yields (plugin's full name, call without arguments) for a hook, in calling order.

    Raises PluginError if there is no such hook or it takes other arguments.
    """
    caller = getattr(manager.hook, hook, None)
    if caller is None or caller.spec is None:
        message = f"no hook is called {hook!r}{did_you_mean(hook, _spec_names(manager))}"
        raise PluginError(message)
    if set(caller.spec.argnames) != set(arguments):
        message = f"{hook} takes ({', '.join(caller.spec.argnames)}), got ({', '.join(arguments)})"
        raise PluginError(message)
    # One by one, not `caller(**arguments)`: pluggy would stop at the first that raises.
    for implementation in reversed(caller.get_hookimpls()):
        yield implementation.plugin_name, _bound(implementation, arguments)


def _bound(implementation: HookImpl, arguments: Mapping[str, Any]) -> Callable[[], Any]:
    values = [arguments[name] for name in implementation.argnames]
    return lambda: implementation.function(*values)


def _register(manager: PluginManager, plugins: Mapping[str, object]) -> dict[str, Failure]:
    failed = {}
    for key, plugin in reversed(list(plugins.items())):  # pluggy calls the last registered first
        try:
            manager.register(plugin, key)
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            failed[key] = Failure.from_error(error)
    return failed


def _add_specs(manager: PluginManager, plugins: Mapping[str, object]) -> dict[str, Failure]:
    for key, call in implementations(manager, "kanawa_hookspecs", {}):
        known = _spec_names(manager)
        try:
            manager.add_hookspecs(call())
        except PluginValidationError as error:  # some plugin's implementation doesn't fit the spec
            culprit = next((k for k, p in plugins.items() if p is error.plugin), key)
            return {culprit: Failure.from_error(error)}
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            return {key: Failure.from_error(error)}
        unprefixed = [n for n in _spec_names(manager) - known if not n.startswith(PREFIX)]
        if unprefixed:
            return {key: Failure(f"hook specs must be named {PREFIX}…: {', '.join(unprefixed)}")}
    return {}


def _misfits(manager: PluginManager, plugins: Mapping[str, object]) -> dict[str, Failure]:
    """Finds implementations of unknown hooks, which pluggy would never call, and wrappers."""
    failed = {}
    for key, plugin in plugins.items():
        for caller in manager.get_hookcallers(plugin) or ():
            own = [i for i in caller.get_hookimpls() if i.plugin is plugin]
            if not caller.has_spec() and not all(i.optionalhook for i in own):
                near = did_you_mean(caller.name, _spec_names(manager))
                failed[key] = Failure(f"implements unknown hook {caller.name}{near}")
            elif any(i.wrapper or i.hookwrapper for i in own):
                failed[key] = Failure(f"wraps {caller.name}; hook wrappers are not supported")
    return failed


def _spec_names(manager: PluginManager) -> set[str]:
    callers = {n: c for n, c in vars(manager.hook).items() if not n.startswith("__")}
    return {name for name, caller in callers.items() if caller.has_spec()}


def checked_contribution(hook: str, result: Any) -> Any:
    """Returns a hook's result, one text as a list; raises TypeError if a hook that lists records gave anything else."""
    record = specs.CONTRIBUTIONS.get(hook)
    if record is None or result is None:
        return result
    if record is str and isinstance(result, str):
        return [result]
    if not isinstance(result, (list, tuple)) or not all(isinstance(r, record) for r in result):
        message = f"must return a list of {record.__name__}, got {result!r:.200}"
        raise TypeError(message)
    return result
