"""`kanawa kernels EXPERIMENT`: which kernel each operation gets on a target, and why not the others."""

from __future__ import annotations

import argparse

from kanawa.cli.arguments import compose_from, experiment_arguments, json_argument
from kanawa.cli.output import write, write_json
from kanawa.plugins import Command


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="kernels",
        help="show which kernel each operation gets, and why not the others",
        configure=_configure,
        run=_run,
        example="kanawa kernels llama2-7b --on v5p-512\nkanawa kernels quickstart --on h100-8 --json",
    )


def _configure(parser: argparse.ArgumentParser) -> None:
    experiment_arguments(parser)
    parser.add_argument(
        "--program",
        default="train_step",
        metavar="NAME",
        help="program to trace (default train_step)",
    )
    json_argument(parser)


def _run(args: argparse.Namespace) -> int:
    from kanawa.composition.prepare import prepare

    composition = compose_from(args, on=args.on or "cpu")
    choices = prepare(composition, "abstract").program(args.program).kernels()
    if args.json:
        write_json([choice.as_json() for choice in choices])
        return 0
    for choice in choices:
        write(f"{choice.operation}: {choice.kernel}")
        write(f"    for {choice.problem}")
        for kernel, reason in choice.refused:
            write(f"    not {kernel}: {reason}")
    return 0
