"""`kanawa list [KIND]`: the catalog of components, with a line about each."""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import Any

from kanawa.cli.about.counts import COUNTED, Counts, short
from kanawa.cli.about.page import kind_named
from kanawa.cli.about.summary import summary
from kanawa.cli.arguments import json_argument
from kanawa.cli.output import write, write_json
from kanawa.plugins import Command, ComponentState, host

#: Text of a count at its longest, and its heading.
_COUNT_WIDTH = len("PARAMETERS")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", metavar="KIND", nargs="?", help="such as layers, models, modifiers, kernels")
    json_argument(parser)


def _run(args: argparse.Namespace) -> int:
    kind = None if args.kind is None else kind_named(args.kind)
    states = host().components(kind)
    counts = Counts()
    if args.json:
        write_json([_record(state, counts, kind) for state in states])
    elif not states:
        write(f"nothing of kind {kind} is installed" if kind else "nothing is installed")
    else:
        _write_rows(states, counts, kind)
    if kind in COUNTED:
        counts.save()
    return 0


def _record(state: ComponentState, counts: Counts, kind: str | None) -> dict[str, Any]:
    keys = ("name", "kind", "distribution", "version", "state", "reason", "value")
    record: dict[str, Any] = {key: str(getattr(state, key)) for key in keys}
    record["description"] = summary(state)
    if state.kind in COUNTED:
        # A list of all kinds shows cached counts only: counting every model takes seconds.
        count = counts.of(state) if kind else counts.known(state)
        record |= {"parameters": count and count.total, "active_parameters": count and count.active}
    return record


def _write_rows(states: list[ComponentState], counts: Counts, kind: str | None) -> None:
    """Writes a line for each component as soon as it is known: the first counts import JAX and build models."""
    names = max(len("NAME"), *(len(state.name) for state in states))
    origins = max(len("FROM"), *(len(_origin(state)) for state in states))
    kinds = max(len("KIND"), *(len(state.kind) for state in states))
    counted = kind in COUNTED

    def line(kind_text: str, name: str, numbers: tuple[str, str], origin: str, what: str) -> str:
        parts = [] if kind else [kind_text.ljust(kinds)]
        parts.append(name.ljust(names))
        parts += [number.rjust(_COUNT_WIDTH) for number in numbers] if counted else []
        return "  ".join([*parts, origin.ljust(origins), what]).rstrip()

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    write(line("KIND", "NAME", ("PARAMETERS", "ACTIVE"), "FROM", "WHAT"))
    for state in states:
        count = counts.of(state) if counted else None
        numbers = ("", "") if count is None else (short(count.total), short(count.active))
        text = line(state.kind, state.name, numbers, _origin(state), _what(state))
        write(text[:width])
        if counted:
            sys.stdout.flush()


def _origin(state: ComponentState) -> str:
    return f"{state.distribution} {state.version}"


def _what(state: ComponentState) -> str:
    """Returns the line about a component, or why it can't be used."""
    return f"{state.state}: {state.reason}" if state.reason else summary(state)


COMMAND = Command(
    name="list",
    help="list components that configs can name, with a line about each",
    configure=_configure,
    run=_run,
    example="kanawa list models\nkanawa list modifiers\nkanawa list kernels --json",
)
