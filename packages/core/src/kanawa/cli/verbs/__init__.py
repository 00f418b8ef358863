"""The verbs: core's own, one file each, and those that plugins offer."""

from __future__ import annotations

from collections.abc import Container
from importlib import import_module

from kanawa.errors import PluginError
from kanawa.plugins import Command, host

# Files in this folder, each with a `command()`.
_FILES = ("plugins", "listing", "doctor", "show", "kernels", "new")


def core_verbs() -> dict[str, Command]:
    """Returns core's verbs by name."""
    commands = [import_module(f"{__name__}.{file}").command() for file in _FILES]
    return {command.name: command for command in commands}


def plugin_verbs(taken: Container[str], asked: str | None = None) -> dict[str, Command]:
    """Returns plugins' verbs by name, without those that core or several plugins claim.

    Raises PluginError if `asked`, the verb that is to run, is claimed by several.
    """
    claims: dict[str, list[tuple[str, Command]]] = {}
    for plugin, commands in host().collect("kanawa_commands"):
        for command in commands:
            claims.setdefault(command.name, []).append((plugin, command))
    if asked is not None and len(claims.get(asked, ())) > 1:
        claimants = " and ".join(plugin for plugin, _ in claims[asked])
        message = f"verb {asked!r} is offered by {claimants}; uninstall one"
        raise PluginError(message)
    return {name: offers[0][1] for name, offers in claims.items() if len(offers) == 1 and name not in taken}
