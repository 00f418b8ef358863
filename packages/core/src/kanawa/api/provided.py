"""Functions of `kn` that another distribution has: found through the catalog; an absent one's package is named."""

from collections.abc import Callable
from typing import Any

from kanawa.errors import UnknownNameError, UsageError
from kanawa.plugins import component, host
from kanawa.plugins.discovery import CORE, packages_by_extra

#: The kind of component, and the distribution of ours that has each function.
KIND = "api"
_HOMES = {"train": "kanawa-runtime", "open": "kanawa-runtime", "plan": "kanawa-parallel"}


def provided(name: str) -> Callable[..., Any]:
    """Returns the installed function called `name`.

    Raises UsageError naming the `pip install` where none is installed, PluginError where one is there and unusable.
    """
    try:
        function: Callable[..., Any] = component(KIND, name, asker=CORE)
    except UnknownNameError as error:
        home = _HOMES[name]
        installed = host().installed()
        if home in installed:
            message = f"kn.{name} is not in the installed {home} {installed[home]}; upgrade it to core's release"
        else:
            message = f'kn.{name} is in {home}, which is not installed: pip install "{CORE}[{_extra(home)}]"'
        raise UsageError(message) from error
    return function


def _extra(distribution: str) -> str:
    """Returns the extra of core that brings a distribution, the largest first."""
    bringing = (extra for extra, packages in packages_by_extra().items() if distribution in packages)
    return next(bringing, "train")
