"""`kanawa kernels EXPERIMENT`: which kernel each operation gets on a target, and why not the others."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from kanawa.cli.arguments import EXPERIMENT_HELP, composition_arguments, json_argument
from kanawa.cli.output import write, write_json
from kanawa.errors import UsageError
from kanawa.plugins import Command, host

#: The package that adds options to this verb, and those of them that say so where it isn't installed.
_TOOLS, _INSTALL = "kanawa-kernel-tools", "kanawa[kernel-tools]"
_TOOL_OPTIONS = ("--bench", "--schedule")


class _NotInstalled(argparse.Action):
    """An option of a package that isn't installed: using it is an error that says what to install."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        """Takes any value, or none."""
        super().__init__(option_strings, dest, nargs="?", **settings)

    def __call__(self, parser: object, namespace: object, values: object, option_string: str | None = None) -> None:
        """Raises UsageError."""
        del parser, namespace, values
        message = f'{option_string} is an option of {_TOOLS}; run: pip install "{_INSTALL}"'
        raise UsageError(message)


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", metavar="EXPERIMENT", nargs="?", help=EXPERIMENT_HELP)
    composition_arguments(parser)
    parser.add_argument(
        "--program",
        default="train_step",
        metavar="NAME",
        help="program to trace (default train_step)",
    )
    parser.add_argument(
        "--require-fused",
        action="store_true",
        help="exit 1 where an operation falls back to a kernel that isn't fused, on hardware that has such kernels",
    )
    json_argument(parser)
    if _TOOLS not in host().installed():
        for option in _TOOL_OPTIONS:
            parser.add_argument(option, action=_NotInstalled, help=f'needs pip install "{_INSTALL}"')


def _run(args: argparse.Namespace) -> int:
    if not args.experiment:
        message = "name an EXPERIMENT whose kernels to show, or a kernel with --schedule KERNEL"
        raise UsageError(message)
    from kanawa.api.kernels import check_fused, kernels
    from kanawa.kernels.choice import list_choices

    choices = kernels(
        args.experiment, on=args.on, modify=args.modify, set=args.set, data=args.data, program=args.program
    )
    if args.json:
        write_json([choice.as_json() for choice in choices])
    else:
        for line in list_choices(choice.as_json() for choice in choices):
            write(line)
    if args.require_fused:
        check_fused(choices)
    return 0


COMMAND = Command(
    name="kernels",
    help="show which kernel each operation gets, and why not the others",
    configure=_configure,
    run=_run,
    example=("kanawa kernels llama2-7b --on v5p-512\nkanawa kernels llama2-7b --on h100-64 --require-fused"),
)
