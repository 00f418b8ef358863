"""The arguments of every verb that takes an experiment, and the composition they ask for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kanawa.composition.experiment import Composition


EXPERIMENT_HELP = (
    "an experiment or a model by name (`kanawa list experiments`, `kanawa list models`), a run's folder, or a Hugging "
    "Face folder"
)
DATA_HELP = (
    "other data: a glob of files in quotes ('mytext/**/*.txt'), a folder of them, a file or an address (.txt, .jsonl, "
    ".csv, .parquet, …; FILE:field=NAME), or the name of an experiment, a data source or a corpus, with fields as "
    "NAME:field=value,…; several with weights: 'A*0.7,B*0.3'"
)


def experiment_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds EXPERIMENT and the options below: `args.experiment`, `.on`, `.data`, `.modify`, `.set`."""
    parser.add_argument("experiment", metavar="EXPERIMENT", help=EXPERIMENT_HELP)
    composition_arguments(parser)


def composition_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --on, --data, --modify and --set, for a verb that names its experiment in its own way."""
    parser.add_argument("--on", metavar="TARGET", help="hardware to compose for: cpu-8, v5p-512, v6e-256x4, h100-64")
    parser.add_argument("--data", metavar="DATA", help=DATA_HELP)
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

    return compose(args.experiment, target=on or args.on, modifiers=args.modify, overrides=args.set, data=args.data)
