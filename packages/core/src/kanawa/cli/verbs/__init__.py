"""The verbs: core's own, one file each, and those that plugins offer."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Collection, Container, Mapping
from importlib import import_module

from kanawa.errors import PluginError, did_you_mean
from kanawa.plugins import Command, CommandOptions, host
from kanawa.plugins.catalog import missing_packages

# Files in this folder, each with its COMMAND.
_FILES = ("plugins", "listing", "doctor", "show", "kernels", "new", "completion")


def core_verbs() -> dict[str, Command]:
    """Returns core's verbs by name."""
    commands = [import_module(f"{__name__}.{file}").COMMAND for file in _FILES]
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


def with_plugin_options(commands: Mapping[str, Command]) -> dict[str, Command]:
    """Returns the verbs with the options that plugins add to them."""
    extended = dict(commands)
    for _, offered in host().collect("kanawa_command_options"):
        for options in offered:
            if options.verb in extended:
                extended[options.verb] = _with_options(extended[options.verb], options)
    return extended


def _with_options(command: Command, options: CommandOptions) -> Command:
    def configure(parser: argparse.ArgumentParser) -> None:
        command.configure(parser)
        options.configure(parser)

    def run(args: argparse.Namespace) -> int:
        code = options.run(args)
        return command.run(args) if code is None else code

    example = "\n".join(filter(None, (command.example, options.example)))
    return dataclasses.replace(command, configure=configure, run=run, example=example)


def unknown_verb(verb: str, known: Collection[str]) -> str:
    """Returns why there is no such verb: misspelt, of a plugin that can't be used, or of a package to install.

    Which package would bring it can't be known, since verbs are known to their packages alone.
    """
    near = did_you_mean(verb, known, limit=len(known))
    lines = [f"no verb {verb!r} is installed{near}"]
    if "did you mean" in near:
        return lines[0]
    lines += [
        f"plugin {state.key} {state.version} is {state.state}: {state.reason}"
        for state in host().plugins()
        if not state.state.usable
    ]
    return "\n".join([*lines, *missing_packages(host().installed())])
