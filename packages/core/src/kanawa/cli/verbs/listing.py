"""`kanawa list [KIND]`: the catalog of components."""

from __future__ import annotations

import argparse

from kanawa.cli.arguments import json_argument
from kanawa.cli.output import write, write_json, write_table
from kanawa.errors import UnknownNameError, did_you_mean
from kanawa.plugins import Command, host


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="list",
        help="list components that configs can name",
        configure=_configure,
        run=_run,
        example="kanawa list\nkanawa list kernels --json",
    )


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", metavar="KIND", nargs="?", help="such as layers, models, modifiers, kernels")
    json_argument(parser)


def _run(args: argparse.Namespace) -> int:
    found = host().components(args.kind)
    kinds = {*host().kinds(), *(state.kind for state in host().components())}
    if args.kind is not None and args.kind not in kinds:
        message = f"there is no kind {args.kind!r}{did_you_mean(args.kind, kinds)}"
        raise UnknownNameError(message)
    if args.json:
        keys = ("name", "kind", "distribution", "version", "state", "reason")
        write_json([{key: str(getattr(state, key)) for key in keys} for state in found])
        return 0
    if not found:
        write(f"nothing of kind {args.kind} is installed" if args.kind else "nothing is installed")
        return 0
    rows = [(s.kind, s.name, s.distribution, s.version, s.state, s.reason) for s in found]
    write_table(("KIND", "NAME", "DISTRIBUTION", "VERSION", "STATE", "REASON"), rows)
    return 0
