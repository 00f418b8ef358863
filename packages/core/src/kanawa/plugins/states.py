"""What is known of each plugin and component: whether it can be used, and what metadata alone says of that."""

from __future__ import annotations

import difflib
import traceback
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from kanawa.plugins.discovery import CORE, PLUGIN_KIND, Entry, Provider, normalise
from kanawa.plugins.records import valid_value

SKIP_VARIABLE = "KANAWA_SKIP_PLUGINS"


class State(StrEnum):
    """Whether a plugin or component can be used, and if not, why not."""

    AVAILABLE = "available"
    LOADED = "loaded"
    SKIPPED = "skipped"
    INCOMPATIBLE = "incompatible"
    CONFLICT = "conflict"
    BROKEN = "broken"

    @property
    def usable(self) -> bool:
        """True for what is loaded or can be: what is in conflict, by its full name."""
        return self in (State.AVAILABLE, State.LOADED, State.CONFLICT)

    @property
    def bad(self) -> bool:
        """True for what someone should repair."""
        return self in (State.INCOMPATIBLE, State.CONFLICT, State.BROKEN)


@dataclass(frozen=True, kw_only=True)
class ComponentState:
    """A catalogued component, or a plugin module, and its state.

    Attributes:
        kind: the component's kind; "plugins" for a plugin module.
        value: "module:object"; of a plugin module "module" too.
        reason: one line.
        traceback: set where it is broken.
    """

    kind: str = PLUGIN_KIND
    name: str
    value: str
    distribution: str
    version: str
    state: State = State.AVAILABLE
    reason: str = ""
    traceback: str = ""

    @property
    def key(self) -> str:
        """The full name, `distribution:name`."""
        return f"{self.distribution}:{self.name}"

    @property
    def label(self) -> str:
        """What a message calls this."""
        return "plugin" if self.kind == PLUGIN_KIND else f"{self.kind} component"

    def __str__(self) -> str:
        advice = f"; {SKIP_VARIABLE}={self.key} leaves it out" if self.state is State.BROKEN else ""
        return f"{self.label} {self.key} {self.version} is {self.state}: {self.reason}{advice}"

    def broken(self, failure: Failure, hook: str = "") -> ComponentState:
        """Returns the state after a failure, in `hook` if that is where it happened."""
        reason = f"{hook}: {failure.reason}" if hook else failure.reason
        return replace(self, state=State.BROKEN, reason=reason, traceback=failure.traceback)


@dataclass(frozen=True)
class Failure:
    """Why a plugin is broken: one line, and the traceback if there is one."""

    reason: str
    traceback: str = ""

    @classmethod
    def from_error(cls, error: BaseException) -> Failure:
        """Returns the failure of a caught exception."""
        lines = str(error).strip().splitlines() or [""]
        # pluggy names plugin and hook in the first line, and says in the last one what doesn't fit.
        reason = f"{lines[0]}: {lines[-1]}" if type(error).__name__ == "PluginValidationError" else lines[0]
        return cls(f"{type(error).__name__}: {reason}", "".join(traceback.format_exception(error)))


def first_states(providers: Iterable[Provider], skip: Collection[str]) -> list[ComponentState]:
    """Returns the state of everything that metadata lists, before any is imported; conflicts are not marked yet."""
    states = []
    for provider in providers:
        for entry in provider.entries:
            state, reason = _first_state(provider, entry, skip)
            of = {"distribution": provider.name, "version": provider.version}
            states.append(ComponentState(**vars(entry), **of, state=state, reason=reason))
    return states


def misspelt(state: ComponentState, kinds: Collection[str]) -> ComponentState:
    """Returns the state of a component, broken if its kind is none and looks like another one.

    Other unknown kinds stay: the package that reads them may not be installed.
    """
    near = difflib.get_close_matches(state.kind, kinds, n=1, cutoff=0.85)
    if state.kind in kinds or not near:
        return state
    return state.broken(
        Failure(f"nothing reads the entry-point group kanawa.{state.kind}; did you mean kanawa.{near[0]}?")
    )


def mark_conflicts(states: Sequence[ComponentState]) -> list[ComponentState]:
    """Sets the state of every claimant of a name that is claimed more than once to `conflict`.

    Nobody asks for a plugin module by its name: only two of one distribution are in conflict.
    """

    def claim(state: ComponentState) -> tuple[str, str, str]:
        return (state.kind, state.name, state.distribution if state.kind == PLUGIN_KIND else "")

    claims: defaultdict[tuple[str, str, str], list[ComponentState]] = defaultdict(list)
    for state in states:
        # Skipping one of two claimants is how a user settles a conflict.
        if state.state is not State.SKIPPED:
            claims[claim(state)].append(state)
    marked = []
    for state in states:
        others = [other for other in claims[claim(state)] if other is not state]
        if others and state.state.usable:
            names = sorted({f"{other.key} ({other.value})" for other in others})
            state = replace(state, state=State.CONFLICT, reason=f"also {', '.join(names)}")
        marked.append(state)
    return marked


def refused_code(states: Sequence[ComponentState]) -> dict[str, str]:
    """Returns what a config may not import either, with the reason: the code of plugins that are skipped or don't fit.

    A distribution of which nothing may be used is refused by its top-level packages, otherwise by "module:object".
    """
    by_distribution: defaultdict[str, list[ComponentState]] = defaultdict(list)
    for state in states:
        by_distribution[state.distribution].append(state)
    refused = {}
    for distribution, members in by_distribution.items():
        out = [state for state in members if state.state in (State.SKIPPED, State.INCOMPATIBLE)]
        # Never core as a whole: every config needs it.
        whole = len(out) == len(members) and distribution != CORE
        for state in out:
            top = state.value.partition(":")[0].partition(".")[0]
            refused[top if whole else state.value] = f"{distribution} {state.version} is {state.state}: {state.reason}"
    return refused


def _first_state(provider: Provider, entry: Entry, skip: Collection[str]) -> tuple[State, str]:
    """Returns the state that metadata alone decides, with its reason."""
    for name in (provider.name, f"{provider.name}:{entry.name}"):
        if name in skip:
            return State.SKIPPED, f"{SKIP_VARIABLE} names {name}"
    if provider.unmet:
        return State.INCOMPATIBLE, "; ".join(provider.unmet)
    if entry.kind != PLUGIN_KIND and not valid_value(entry.value):
        return State.BROKEN, f"value {entry.value!r} is not module:object"
    return State.AVAILABLE, ""


def parse_skip(text: str) -> frozenset[str]:
    """Reads KANAWA_SKIP_PLUGINS: `distribution` or `distribution:name`, separated by commas."""
    parts = (part.strip().partition(":") for part in text.split(",") if part.strip())
    return frozenset(normalise(dist) + colon + name for dist, colon, name in parts)
