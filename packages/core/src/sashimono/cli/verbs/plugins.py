"""`sashimono plugins`: which plugins are installed, and whether they work."""

from __future__ import annotations

import argparse

from sashimono.cli.arguments import json_argument
from sashimono.cli.output import write, write_json, write_table
from sashimono.plugins import Command, host


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="plugins",
        help="list installed plugins with their state",
        configure=json_argument,
        run=_run,
        example="sashimono plugins --json",
    )


def _run(args: argparse.Namespace) -> int:
    states = host().plugins()
    if args.json:
        keys = ("name", "distribution", "version", "state", "reason", "traceback")
        write_json([{key: str(getattr(state, key)) for key in keys} for state in states])
        return 0
    if not states:
        write('no plugins are installed; try: pip install "sashimono-core[train]"')
        return 0
    rows = [(s.name, s.distribution, s.version, s.state, s.reason) for s in states]
    write_table(("NAME", "DISTRIBUTION", "VERSION", "STATE", "REASON"), rows)
    return 0
