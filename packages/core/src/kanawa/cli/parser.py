"""The parser of the whole command line, made of the verbs that are installed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from kanawa._version import __version__
from kanawa.plugins import Command

TRACEBACK_VARIABLE = "KANAWA_TRACEBACK"


def build_parser(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """Returns the parser; what it parses has the verb's `run` as `run_verb`, None without a verb."""
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
            help=command.help,
            description=command.help,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if command.example:
            verb.epilog = "\n  ".join(["example:", *command.example.strip().splitlines()])
        command.configure(verb)
        verb.set_defaults(run_verb=command.run)  # not `run`: verbs have a --run
    return parser


def verb_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Returns each verb's own parser."""
    (verbs,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(verbs.choices)
