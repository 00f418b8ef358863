"""Composition: targets, mesh rules, modifiers, and the one order in which an experiment becomes a program."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kanawa.compose.experiment import Composition as Composition
from kanawa.compose.experiment import compose as compose
from kanawa.compose.target import Target as Target
from kanawa.compose.target import parse_target as parse_target

if TYPE_CHECKING:
    from kanawa.compose.environment import environment as environment


def __getattr__(name: str) -> Any:
    """Imports what needs JAX only when it is asked for, so that `show` stays quick."""
    if name == "environment":
        from kanawa.compose.environment import environment

        return environment
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)


class _CallablePackage(ModuleType):
    """Lets `kn.compose(…)` work although importing this package binds its name in `kanawa`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Composition:
        return compose(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
