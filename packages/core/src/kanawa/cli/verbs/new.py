"""`kanawa new plugin NAME`: a package that is ready to publish and passes its own tests."""

from __future__ import annotations

import argparse
from pathlib import Path

from kanawa.cli.arguments import json_argument
from kanawa.cli.output import write, write_json
from kanawa.cli.scaffold import ALIASES, KINDS
from kanawa.local_path import local_path
from kanawa.plugins import Command


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("plugin",), help="what to write")
    parser.add_argument("name", metavar="NAME", help="distribution name: small letters, digits, hyphens")
    kinds = f"what the plugin offers: {', '.join(KINDS)} (default layer)"
    parser.add_argument("--kind", metavar="KIND", choices=(*KINDS, *ALIASES), default="layer", help=kinds)
    parser.add_argument("--into", type=Path, default=Path(), metavar="DIR", help="where its folder goes")
    parser.add_argument("--license", default="Apache-2.0", metavar="SPDX", help="its licence (default Apache-2.0)")
    parser.add_argument("--author", default="", metavar="NAME", help="publisher: 'Ada Lovelace <ada@example.org>'")
    json_argument(parser)


def _run(args: argparse.Namespace) -> int:
    from kanawa.cli.scaffold.names import plugin_names, publisher
    from kanawa.cli.scaffold.package import load_kind, write_package

    names, kind = plugin_names(args.name), ALIASES.get(args.kind, args.kind)
    by = publisher(names.distribution, args.license, args.author)
    local_path(args.into, "--into")
    written = write_package(names, kind, args.into, by)
    if args.json:
        write_json([str(path) for path in written])
        return 0
    for path in written:
        write(str(path))
    root = args.into / names.distribution
    tests = " ".join(["pytest", *load_kind(kind).test_requires])
    write(f"\nnext: pip install -e {root} {tests} && python -m pytest {root}")
    return 0


COMMAND = Command(
    name="new",
    help="write a new plugin package with tests from the conformance kit",
    configure=_configure,
    run=_run,
    example=(
        "kanawa new plugin my-layer\n"
        "kanawa new plugin my-kernel --kind kernel --into ~/plugins\n"
        "kanawa new plugin my-service --kind service --license MIT --author 'Ada Lovelace <ada@example.org>'"
    ),
)
