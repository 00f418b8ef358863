"""Turns discovered entry points into states: skipped, incompatible, in conflict, or available."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from kanawa.plugins.discovery import PLUGIN_KIND, Entry, Provider, normalise
from kanawa.plugins.records import valid_value
from kanawa.plugins.states import ComponentState, PluginState, State

SKIP_VARIABLE = "KANAWA_SKIP_PLUGINS"
_AnyState = TypeVar("_AnyState", PluginState, ComponentState)


def plugin_states(providers: Iterable[Provider], skip: Collection[str]) -> list[PluginState]:
    """Returns the state of every plugin module before any is imported."""
    states = []
    for provider in providers:
        for entry in provider.entries:
            if entry.kind == PLUGIN_KIND:
                state, reason = _first_state(provider, entry, skip)
                states.append(
                    PluginState(
                        name=entry.name,
                        value=entry.value,
                        distribution=provider.name,
                        version=provider.version,
                        state=state,
                        reason=reason,
                    )
                )
    return mark_conflicts(states)


def component_states(providers: Iterable[Provider], skip: Collection[str]) -> list[ComponentState]:
    """Returns the state of every component that metadata lists; conflicts are not marked yet."""
    states = []
    for provider in providers:
        for entry in provider.entries:
            if entry.kind != PLUGIN_KIND:
                state, reason = _first_state(provider, entry, skip)
                if state is State.AVAILABLE and not valid_value(entry.value):
                    state, reason = State.BROKEN, f"value {entry.value!r} is not module:object"
                states.append(
                    ComponentState(
                        name=entry.name,
                        kind=entry.kind,
                        value=entry.value,
                        distribution=provider.name,
                        version=provider.version,
                        state=state,
                        reason=reason,
                    )
                )
    return states


def mark_conflicts(states: Sequence[_AnyState]) -> list[_AnyState]:
    """Gives every claimant of a name that is claimed more than once the state `conflict`."""
    claims: defaultdict[tuple[str, str], list[_AnyState]] = defaultdict(list)
    for state in states:
        if state.state is not State.SKIPPED:
            claims[_claim(state)].append(state)
    marked = []
    for state in states:
        others = [other for other in claims[_claim(state)] if other is not state]
        if others and state.state.usable:
            names = sorted({f"{other.key} ({other.value})" for other in others})
            state = replace(state, state=State.CONFLICT, reason=f"also {', '.join(names)}")
        marked.append(state)
    return marked


def _claim(state: PluginState | ComponentState) -> tuple[str, str]:
    return (state.kind if isinstance(state, ComponentState) else PLUGIN_KIND, state.name)


def _first_state(provider: Provider, entry: Entry, skip: Collection[str]) -> tuple[State, str]:
    """Returns the state that metadata alone decides, with its reason."""
    for name in (provider.name, f"{provider.name}:{entry.name}"):
        if name in skip:
            return State.SKIPPED, f"{SKIP_VARIABLE} names {name}"
    if provider.unmet:
        return State.INCOMPATIBLE, "; ".join(provider.unmet)
    return State.AVAILABLE, ""


def parse_skip(text: str) -> frozenset[str]:
    """Reads KANAWA_SKIP_PLUGINS: `distribution` or `distribution:name`, separated by commas."""
    parts = (part.strip().partition(":") for part in text.split(",") if part.strip())
    return frozenset(normalise(dist) + colon + name for dist, colon, name in parts)
