"""Which emitted values a caller asked for or changes, and whether every pattern named something that exists."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from kanawa.config.paths import match_path
from kanawa.errors import ModuleError, did_you_mean

#: A call's name in an output path: "layers[0]@second.mean".
_CALL = re.compile(r"((?:\[[^\]]*\])*)@([\w\-*]+)")


#: What a caller puts in the place of an emitted value: a function of it and of the index of the layer it belongs to.
Change = Callable[[Any, Any], Any]


class EmissionError(ModuleError):
    """A pattern of `emit` or `intervene` matches nothing that the call offers, or a change is no such value."""


class Wanted:
    """The patterns a caller gave, and the paths that modules offered; one for a whole call, transforms included."""

    def __init__(self, patterns: Iterable[str] = (), changes: Mapping[str, Change] | None = None) -> None:
        self.patterns = tuple(patterns)
        self.changes = dict(changes or {})
        for pattern, change in self.changes.items():
            if not callable(change):
                message = (
                    f"intervene[{pattern!r}] is a {type(change).__name__}, expected a function of the value and its "
                    "layer's index that returns the new value, such as lambda value, layer: value * 0"
                )
                raise EmissionError(message)
        self.offered: dict[str, None] = {}
        self.changeable: set[str] = set()
        self._emitted: set[str] = set()
        self._changed: set[str] = set()

    def takes(self, path: str) -> bool:
        """Returns whether some pattern asks for the value that a module offers under `path`."""
        if not (self.patterns or self.changes):
            return False
        self.offered[path] = None
        matching = [pattern for pattern in self.patterns if matches(pattern, path)]
        self._emitted.update(matching)
        return bool(matching)

    def changed(self, path: str, value: Any, layer: Any) -> Any:
        """Returns a value that a module offers under `path`, as the caller changes it; `layer` is its layer's index."""
        self.changeable.add(path)
        for pattern, change in self.changes.items():
            if not matches(pattern, path):
                continue
            self._changed.add(pattern)
            new = jax.tree.map(jnp.asarray, change(value, layer))
            found, expected = (jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", tree) for tree in (new, value))
            if found != expected:
                message = f"intervene[{pattern!r}] returned {found} for {path}, which is {expected}"
                raise EmissionError(message)
            value = new
        return value

    def check(self, what: str) -> None:
        """Raises EmissionError where a pattern matched nothing in the call of `what`."""
        for pattern in self.patterns:
            if pattern not in self._emitted:
                raise EmissionError(_unmatched(f"emit={pattern!r}", pattern, what, self.offered))
        for pattern in self.changes:
            if pattern not in self._changed:
                read_only = any(matches(pattern, path) for path in self.offered)
                why = " and goes on with" if read_only else ""
                raise EmissionError(_unmatched(f"intervene[{pattern!r}]", pattern, what, self.changeable, why))


def _unmatched(said: str, pattern: str, what: str, offered: Collection[str], why: str = "") -> str:
    if not offered:
        return f"{said} matches nothing: {what} emits nothing{why} in this call"
    near = did_you_mean(pattern, sorted(offered))
    exists = f"; it emits {', '.join(sorted(offered))}" if "did you mean" in near else ""
    return f"{said} matches nothing that {what} emits{why}{near}{exists}"


def matches(pattern: str, path: str) -> bool:
    """Returns whether a glob matches an output path; one that names no call matches every call of a module."""
    if "@" in pattern:
        return match_path(_as_name(pattern), _as_name(path))
    return match_path(pattern, _CALL.sub(r"\1", path))


def _as_name(path: str) -> str:
    """Returns a path whose calls' names are part of the module's, in front of its index."""
    return _CALL.sub(r"--at--\2\1", path)
