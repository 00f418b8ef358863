"""The arguments of every verb that takes an experiment, and the composition they ask for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kanawa.composition.experiment import Composition


def experiment_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds EXPERIMENT, --on, --modify and --set: `args.experiment`, `.on`, `.modify`, `.set`."""
    parser.add_argument("experiment", metavar="EXPERIMENT", help="a name from `kanawa list experiments`")
    parser.add_argument("--on", metavar="TARGET", help="hardware to compose for: cpu-8, v5p-512, v6e-256x4, h100-64")
    parser.add_argument(
        "--modify",
        metavar="NAME[:key=value,...]",
        action="append",
        default=[],
        help="apply a modifier from `kanawa list modifiers`; repeat to apply several in order",
    )
    parser.add_argument(
        "--set",
        metavar="path=value",
        action="append",
        default=[],
        help="set one config value, typed, after all modifiers; repeat for several",
    )


def json_argument(parser: argparse._ActionsContainer) -> None:
    """Adds --json: `args.json`."""
    parser.add_argument("--json", action="store_true", help="write JSON for a machine to read")


def compose_from(args: argparse.Namespace, on: str | None = None) -> Composition:
    """Returns the composition that `experiment_arguments` ask for, on another target if `on`."""
    from kanawa.composition.experiment import compose

    return compose(args.experiment, target=on or args.on, modifiers=args.modify, overrides=args.set)
