"""The parser of the whole command line, made of the verbs that are installed."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping

from kanawa._version import __version__
from kanawa.errors import PluginError
from kanawa.plugins import Command

TRACEBACK_VARIABLE = "KANAWA_TRACEBACK"
logger = logging.getLogger(__name__)


def build_parser(commands: Mapping[str, Command], asked: str | None = None) -> argparse.ArgumentParser:
    """Returns the parser; what it parses has the verb's `run` as `run_verb`, None without a verb.

    A verb whose arguments can't be declared is left out with a warning; if it is `asked`, its PluginError is raised.
    """
    parser = argparse.ArgumentParser(
        prog="kanawa",
        description="Trains and serves large models on any accelerator.",
        epilog=f"--traceback or {TRACEBACK_VARIABLE}=1 shows where an error comes from.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kanawa {__version__}")
    parser.set_defaults(run_verb=None)
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    for name, command in sorted(commands.items()):
        verb = verbs.add_parser(
            name,
            help=command.help.replace("%", "%%"),  # argparse reads % as a format
            description=command.help,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if command.example:
            verb.epilog = "\n  ".join(["example:", *command.example.strip().splitlines()])
        try:
            command.configure(verb)
        except PluginError as error:
            if name == asked:
                raise
            logger.warning("verb %s is left out: %s", name, error)
            del verbs.choices[name]
            verbs._choices_actions.pop()  # the line that `--help` shows of it
            continue
        verb.set_defaults(run_verb=command.run)  # not `run`: verbs have a --run
    return parser


def verb_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Returns each verb's own parser."""
    (verbs,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(verbs.choices)
