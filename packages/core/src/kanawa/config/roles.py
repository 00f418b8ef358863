"""Roles: abstract Configurables. A config of one can't be built, and the error says what fills the role."""

from kanawa.config.callables import Catalog
from kanawa.errors import ConfigError


class AbstractRoleError(ConfigError):
    """A role was used where an implementation of it belongs."""


def is_role(cls: type) -> bool:
    """Returns whether a class is abstract: it says so itself, or it leaves abstract methods open."""
    return bool(getattr(cls, "__abstractmethods__", ())) or vars(cls).get("_abstract", False)


def role_problem(cls: type) -> str:
    """Returns why a role can't be built and what fills it, for an error message."""
    methods = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
    left_open = f" (abstract: {methods})" if methods else ""
    filled = Catalog.fillers(cls) if Catalog.fillers is not None else ""
    advice = filled or "use the Config of a class that implements it"
    return f"{cls.__qualname__} is a role, not an implementation{left_open}; {advice}"


def refuse_role(cls: type) -> None:
    """Raises AbstractRoleError where a class is a role."""
    if is_role(cls):
        raise AbstractRoleError(role_problem(cls))
