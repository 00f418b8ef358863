"""`kanawa new plugin NAME`: a package that is ready to publish and passes its own tests."""

from __future__ import annotations

import argparse
from pathlib import Path

from kanawa.cli.arguments import json_argument
from kanawa.cli.output import write, write_json
from kanawa.cli.scaffold.kinds import NAMES
from kanawa.plugins import Command


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="new",
        help="write a new plugin package with tests from the conformance kit",
        configure=_configure,
        run=_run,
        example="kanawa new plugin my-layer\nkanawa new plugin my-kernel --kind kernel --into ~/plugins",
    )


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("plugin",), help="what to write")
    parser.add_argument("name", metavar="NAME", help="distribution name: small letters, digits, hyphens")
    parser.add_argument("--kind", choices=NAMES, default="layer", help="what the plugin offers (default layer)")
    parser.add_argument("--into", type=Path, default=Path(), metavar="DIR", help="where its folder goes")
    json_argument(parser)


def _run(args: argparse.Namespace) -> int:
    from kanawa.cli.scaffold.names import plugin_names
    from kanawa.cli.scaffold.package import write_package

    names = plugin_names(args.name)
    written = write_package(names, args.kind, args.into)
    if args.json:
        write_json([str(path) for path in written])
        return 0
    for path in written:
        write(str(path))
    root = args.into / names.distribution
    write(f"\nnext: pip install -e {root} pytest && python -m pytest {root}")
    return 0
