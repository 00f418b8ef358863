"""`kanawa completion SHELL`: a script that completes verbs, options and names of the catalog."""

from __future__ import annotations

import argparse

from kanawa.cli.output import write
from kanawa.errors import UsageError
from kanawa.plugins import Command

SHELLS = ("bash", "zsh", "fish")


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="completion",
        help="write a script that completes verbs, options, experiments, modifiers and targets in your shell",
        configure=_configure,
        run=_run,
        example=(
            "kanawa completion bash\nkanawa completion zsh\nkanawa completion fish\nkanawa completion --names targets"
        ),
    )


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", nargs="?", choices=SHELLS, help=f"one of {', '.join(SHELLS)}")
    parser.add_argument("--names", metavar="KIND", help="write names instead, a line each: experiments, targets, …")


def _run(args: argparse.Namespace) -> int:
    from kanawa.cli.completion import names, script, words_of
    from kanawa.cli.parser import build_parser, verb_parsers
    from kanawa.cli.verbs import core_verbs, plugin_verbs

    if args.names:
        write("\n".join(names(args.names)))
        return 0
    if args.shell is None:
        message = f"completion needs a shell: {', '.join(SHELLS)}"
        raise UsageError(message)
    commands = core_verbs()
    parser = build_parser(commands | plugin_verbs(commands))
    write(script(args.shell, words_of(verb_parsers(parser))))
    return 0
