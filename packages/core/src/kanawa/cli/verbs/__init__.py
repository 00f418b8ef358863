"""The verbs: core's own, one file each, and those that plugins offer."""

from __future__ import annotations

import argparse
import dataclasses
import logging
from collections.abc import Collection, Mapping
from importlib import import_module

from kanawa.errors import INTERRUPTIONS, PluginError, did_you_mean
from kanawa.plugins import Command, CommandOptions, host
from kanawa.plugins.catalog import missing_packages
from kanawa.plugins.discovery import own_packages
from kanawa.plugins.states import SKIP_VARIABLE

logger = logging.getLogger(__name__)

# Files in this folder, each with its COMMAND.
_FILES = ("plugins", "listing", "doctor", "show", "kernels", "new", "completion")


def core_verbs() -> dict[str, Command]:
    """Returns core's verbs by name."""
    commands = [import_module(f"{__name__}.{file}").COMMAND for file in _FILES]
    return {command.name: command for command in commands}


def plugin_verbs(taken: Collection[str], asked: str | None = None) -> dict[str, Command]:
    """Returns plugins' verbs by name.

    A verb of core, or of one of Kanawa's packages, keeps its name; that of another plugin is then `DISTRIBUTION:NAME`,
    as are all of several plugins that claim one name. One warning line says so. Raises PluginError if `asked`, the verb
    that is to run, is ambiguous.
    """
    claims: dict[str, dict[str, Command]] = {}
    for plugin, commands in host().collect("kanawa_commands"):
        for command in commands:
            claims.setdefault(command.name, {})[plugin] = _guarded(plugin, command)
    verbs: dict[str, Command] = {}
    for name, offers in claims.items():
        owns = [plugin for plugin in offers if _distribution(plugin) in own_packages() or len(offers) == 1]
        holder = "kanawa" if name in taken else next(iter(owns), "")
        others = {f"{_distribution(plugin)}:{name}": plugin for plugin in offers if plugin != holder}
        verbs |= {key: offers[plugin] for key, plugin in others.items()}
        if holder in offers:
            verbs[name] = offers[holder]
        if others:
            claimants = " and ".join(dict.fromkeys(filter(None, (holder, *offers))))
            kept = f"; kanawa {name} is that of {holder}" if holder else ""
            ways = f"kanawa {' or kanawa '.join(others)} is the other; {SKIP_VARIABLE}={[*others.values()][-1]}"
            message = f"verb {name!r} is offered by {claimants}{kept}; {ways} leaves it out"
            if asked == name and not holder:
                raise PluginError(message)
            logger.warning("%s", message)
    return verbs


def _distribution(plugin: str) -> str:
    return plugin.partition(":")[0]


def _guarded(plugin: str, command: Command) -> Command:
    """Returns a plugin's verb; one whose arguments can't be declared raises PluginError naming the plugin."""

    def configure(parser: argparse.ArgumentParser) -> None:
        try:
            command.configure(parser)
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            raise PluginError(_failed(plugin, f"{type(error).__name__}: {error}")) from error

    def run(args: argparse.Namespace) -> int:
        code = command.run(args)
        if code is not None and not isinstance(code, int):
            message = _failed(plugin, f"verb {command.name} returned {code!r:.80}, expected an exit code")
            raise PluginError(message)
        return code or 0

    return dataclasses.replace(command, configure=configure, run=run)


def _failed(plugin: str, what: str) -> str:
    distribution = _distribution(plugin)
    version = host().installed().get(distribution, "")
    return f"plugin {plugin} {version}: {what}; {SKIP_VARIABLE}={distribution} leaves it out"


def with_plugin_options(commands: Mapping[str, Command]) -> dict[str, Command]:
    """Returns the verbs with the options that plugins add to them."""
    extended = dict(commands)
    for plugin, offered in host().collect("kanawa_command_options"):
        for options in offered:
            if options.verb in extended:
                extended[options.verb] = _with_options(plugin, extended[options.verb], options)
    return extended


def _with_options(plugin: str, command: Command, options: CommandOptions) -> Command:
    def configure(parser: argparse.ArgumentParser) -> None:
        command.configure(parser)
        try:
            options.configure(parser)
        except INTERRUPTIONS:
            raise
        except BaseException as error:  # the verb is another package's, and goes on without the options
            logger.warning("%s", _failed(plugin, f"its options of {command.name}: {type(error).__name__}: {error}"))

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
