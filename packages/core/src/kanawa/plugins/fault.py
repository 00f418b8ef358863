"""Whose code an error came through: a plugin whose frames are in its traceback, Kanawa's own packages excepted."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from typing import Any

from kanawa.plugins.discovery import own_packages
from kanawa.plugins.manager import host
from kanawa.plugins.states import SKIP_VARIABLE, ComponentState


def plugin_behind(error: BaseException) -> ComponentState | None:
    """Returns the plugin of others whose code is nearest to where an error arose; None where there was none of it."""
    owners: dict[str, ComponentState] = {}
    for state in (*host().plugins(), *host().components()):
        if state.distribution not in own_packages():
            owners.setdefault(state.value.partition(":")[0].partition(".")[0], state)
    packages = (package for each in _chain(error) for package in _packages_inside_out(each))
    return next((owners[package] for package in packages if package in owners), None)


def foreign_code_behind(error: BaseException) -> str | None:
    """Returns the place in a user's own files where an error arose; None where Kanawa, or what it called, raised it."""
    libraries = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    for each in _chain(error):
        for frame, line in reversed(list(traceback.walk_tb(each.__traceback__))):
            package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            file = frame.f_code.co_filename
            if package == "kanawa" or package.startswith("kanawa_"):
                break
            if not (file.startswith(("<", *libraries)) or "-packages" in file):
                return f"{file}, line {line}, in {frame.f_code.co_name}"
    return None


def how_to_skip(state: ComponentState) -> str:
    """Returns which plugin it was, and how to run without it."""
    name = state.distribution
    return f"this comes from the plugin {name} {state.version}; {SKIP_VARIABLE}={name} leaves it out"


def named_after(origin: Any) -> str:
    """Returns "; this comes from …" for a plugin's full name or a component; nothing for one of Kanawa's own."""
    if isinstance(origin, str):
        state = next((state for state in host().plugins() if state.key == origin), None)
    else:
        state = host().locate(origin)
    return "" if state is None or state.distribution in own_packages() else f"; {how_to_skip(state)}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, then its causes; where none is named, what was being handled when it was raised."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _packages_inside_out(error: BaseException) -> Iterator[str]:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return (str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame in reversed(frames))
