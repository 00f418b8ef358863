"""What the host knows about each plugin and component: its origin, and if it can be used."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
        """True for what is loaded or can be."""
        return self in (State.AVAILABLE, State.LOADED)

    @property
    def bad(self) -> bool:
        """True for what someone should repair."""
        return self in (State.INCOMPATIBLE, State.CONFLICT, State.BROKEN)


@dataclass(frozen=True, kw_only=True)
class PluginState:
    """A plugin module and its state; `reason` is one line, `traceback` is set when it is broken."""

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
        return "plugin"


@dataclass(frozen=True, kw_only=True)
class ComponentState:
    """A catalogued component and its state; `value` is "module:object"."""

    name: str
    kind: str
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
        return f"{self.kind} component"
