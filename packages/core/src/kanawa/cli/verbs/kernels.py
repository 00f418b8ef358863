"""`kanawa kernels EXPERIMENT`: which kernel each operation gets on a target, and why not the others."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kanawa.cli.arguments import EXPERIMENT_HELP, compose_from, composition_arguments, json_argument
from kanawa.cli.output import write, write_json
from kanawa.errors import UsageError
from kanawa.plugins import Command, host

if TYPE_CHECKING:
    from kanawa.composition.experiment import Composition
    from kanawa.kernels.choice import KernelChoice

#: The package that adds options to this verb, and those of them that say so where it isn't installed.
_TOOLS, _INSTALL = "kanawa-kernel-tools", "kanawa[kernel-tools]"
_TOOL_OPTIONS = ("--bench", "--schedule", "--features")


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


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="kernels",
        help="show which kernel each operation gets, and why not the others",
        configure=_configure,
        run=_run,
        example=("kanawa kernels llama2-7b --on v5p-512\nkanawa kernels llama2-7b --on h100-64 --require-fused"),
    )


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
        message = "name an EXPERIMENT whose kernels to show, a kernel with --schedule KERNEL, or ask for --features"
        raise UsageError(message)
    choices = chosen(compose_from(args, on=args.on or "cpu"), args.program)
    from kanawa.kernels.choice import list_choices

    if args.json:
        write_json([choice.as_json() for choice in choices])
    else:
        for line in list_choices(choice.as_json() for choice in choices):
            write(line)
    return _judged(choices) if args.require_fused else 0


def chosen(composition: Composition, program: str) -> tuple[KernelChoice, ...]:
    """Returns the kernels a program gets on the composition's target; no library of its platform is needed."""
    from kanawa.composition.environment import environment
    from kanawa.composition.prepare import prepare

    where = environment(composition, "abstract")
    # A fallback is listed with all others, and judged after: an error at the first one would hide the rest.
    policy = dataclasses.replace(where.plan.kernels, survey=True, require_fused=False)
    where = dataclasses.replace(where, plan=dataclasses.replace(where.plan, kernels=policy))
    return prepare(composition, where=where).program(program).kernels()


def _judged(choices: Sequence[KernelChoice]) -> int:
    """Raises KernelError naming every fallback; returns 0 where there is none."""
    from kanawa.errors import KernelError

    fallbacks = [choice for choice in choices if choice.fallback]
    if not fallbacks:
        return 0
    lines = [f"{choice.operation} {choice.problem} gets {choice.kernel}" for choice in fallbacks]
    message = "\n  ".join(
        [
            f"{len(fallbacks)} of {len(choices)} calls get no fused kernel; change the problem so that one applies, or "
            "install a backend that has one:",
            *lines,
        ]
    )
    raise KernelError(message)
