"""Which components fill a role: asked only when a role was built by mistake, because it imports candidates to see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kanawa.errors import KanawaError
from kanawa.plugins.catalog import load_value
from kanawa.plugins.manager import host

if TYPE_CHECKING:
    from kanawa.plugins.records import Kind
    from kanawa.plugins.states import ComponentState


def fillers(role: type) -> str:
    """Returns what fills a role and how to use it, or what to install, as the end of an error message."""
    kinds = _kinds_of(role)
    filling = [state for kind in kinds for state in host().components(kind.name) if _fills(state, kind, role)]
    if filling:
        one = filling[0]
        return (
            f"filled by {_listed(filling)}; use the Config of one, as in "
            f"kn.component({one.kind!r}, {one.name!r}).Config(…)"
        )
    missing = sorted({kind.home for kind in kinds if kind.home} - host().installed().keys())
    if missing:
        return f"nothing installed fills it: pip install {' '.join(missing)}, or use the Config of your own subclass"
    return "no component in the catalog fills it: use the Config of a class that implements it"


def _kinds_of(role: type) -> list[Kind]:
    """Returns the kinds whose components may fill a role: those asking for the nearest of its base classes."""
    asking: dict[type, list[Kind]] = {}
    for kind in host().kinds().values():
        base = _loaded(kind.subclass_of or kind.makes)
        if isinstance(base, type):
            asking.setdefault(base, []).append(kind)
    # In the order of the MRO: Configurable, which layers ask for, is a base of every role and must come last.
    return next((asking[base] for base in role.__mro__ if base in asking), [])


def _fills(state: ComponentState, kind: Kind, role: type) -> bool:
    if not state.state.usable:
        return False
    try:
        component = host().load(state.kind, state.key)
    except KanawaError:
        return False  # It is broken or in conflict: `kanawa list` says so, this error is about something else.
    if not isinstance(component, type):
        made = _loaded(kind.makes)
        return isinstance(made, type) and issubclass(made, role)
    return issubclass(component, role) and component is not role and not getattr(component, "__abstractmethods__", ())


def _loaded(value: str) -> Any:
    try:
        return load_value(value) if value else None
    except ImportError:
        return None


def _listed(states: list[ComponentState]) -> str:
    """Returns "layers layer-norm, rms-norm (kanawa-layers)" for each kind and distribution."""
    groups: dict[tuple[str, str], list[str]] = {}
    for state in states:
        groups.setdefault((state.kind, state.distribution), []).append(state.name)
    return "; ".join(f"{kind} {', '.join(names)} ({home})" for (kind, home), names in groups.items())
