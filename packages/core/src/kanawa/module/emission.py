"""Which emitted values a caller asked for, and whether every pattern asked for something that exists."""

import re
from collections.abc import Iterable

from kanawa.config.paths import match_path
from kanawa.errors import ModuleError, did_you_mean

#: A call's name in an output path: "layers[0]@second.mean".
_CALL = re.compile(r"((?:\[[^\]]*\])*)@([\w\-*]+)")


class EmissionError(ModuleError):
    """A pattern of `emit` matches nothing that the call offers."""


class Wanted:
    """The patterns a caller gave, and the paths that modules offered; one for a whole call, transforms included."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self.patterns = tuple(patterns)
        self.offered: dict[str, None] = {}
        self._used: set[str] = set()

    def takes(self, path: str) -> bool:
        """Returns whether some pattern asks for the value that a module offers under `path`."""
        if not self.patterns:
            return False
        self.offered[path] = None
        matching = {pattern for pattern in self.patterns if matches(pattern, path)}
        self._used |= matching
        return bool(matching)

    def check(self, what: str) -> None:
        """Raises EmissionError where a pattern matched nothing in the call of `what`."""
        for pattern in self.patterns:
            if pattern in self._used:
                continue
            offered = ", ".join(self.offered)
            near = did_you_mean(pattern, self.offered) if offered else ""
            exists = f"; it emits {offered}" if "did you mean" in near else ""
            message = (
                f"emit={pattern!r} matches nothing that {what} emits{near}{exists}"
                if offered
                else f"emit={pattern!r} matches nothing: {what} emits nothing in this call"
            )
            raise EmissionError(message)


def matches(pattern: str, path: str) -> bool:
    """Returns whether a glob matches an output path; one that names no call matches every call of a module."""
    if "@" in pattern:
        return match_path(_as_name(pattern), _as_name(path))
    return match_path(pattern, _CALL.sub(r"\1", path))


def _as_name(path: str) -> str:
    """Returns a path whose calls' names are part of the module's, in front of its index."""
    return _CALL.sub(r"--at--\2\1", path)
