"""`kanawa plugins`: which plugins are installed, and whether they work."""

from __future__ import annotations

import argparse

from kanawa.cli.arguments import json_argument
from kanawa.cli.output import write, write_json, write_table
from kanawa.plugins import Command, host


def _run(args: argparse.Namespace) -> int:
    states = host().plugins()
    if args.json:
        keys = ("name", "distribution", "version", "state", "reason", "traceback")
        write_json([{key: str(getattr(state, key)) for key in keys} for state in states])
        return 0
    if not states:
        write('no plugins are installed; try: pip install "kanawa[train]"')
        return 0
    rows = [(s.name, s.distribution, s.version, s.state, s.reason) for s in states]
    write_table(("NAME", "DISTRIBUTION", "VERSION", "STATE", "REASON"), rows)
    return 0


COMMAND = Command(
    name="plugins",
    help="list installed plugins with their state",
    configure=json_argument,
    run=_run,
    example="kanawa plugins --json",
)
