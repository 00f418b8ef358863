"""`kanawa show EXPERIMENT`: the resolved config, its origins, its differences; `show KIND NAME`: a component."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kanawa.cli.arguments import EXPERIMENT_HELP, composition_arguments, json_argument
from kanawa.cli.output import write, write_json, write_message, write_table
from kanawa.plugins import Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanawa.api.show import Why
    from kanawa.composition.experiment import Composition
    from kanawa.config import Change


def _configure(parser: argparse.ArgumentParser) -> None:
    what = "; or a KIND and a NAME of `kanawa list`, such as: modifier moe"
    parser.add_argument("experiment", metavar="EXPERIMENT", help=EXPERIMENT_HELP + what)
    parser.add_argument("component", metavar="NAME", nargs="?", help="the component's name, after its kind")
    composition_arguments(parser)
    view = parser.add_mutually_exclusive_group()
    view.add_argument("--why", metavar="PATH", help="who set this value, first to last; last wins")
    view.add_argument(
        "--diff",
        metavar="OTHER",
        help="what changed from OTHER, an experiment without changes, a run's folder or a config.json",
    )
    form = parser.add_mutually_exclusive_group()
    json_argument(form)
    form.add_argument("--text", action="store_true", help="write one path and value a line (default)")


def _run(args: argparse.Namespace) -> int:
    if args.component is not None:
        return _component(args)
    from kanawa.api.show import show

    shown = show(args.experiment, on=args.on, modify=args.modify, set=args.set, data=args.data)
    if shown.note:
        write_message(f"kanawa: this is the model's config alone: {shown.note}")
    if args.why:
        _write_why(args.why, shown.why(args.why), args.json)
    elif args.diff:
        _write_diff(shown.diff(args.diff), args.json)
    elif args.json:
        write_json(shown.as_json())
    else:
        write("".join(f"# {line}\n" for line in _heading(shown.composition)) + shown.text)
    return 0


def _component(args: argparse.Namespace) -> int:
    from kanawa.cli.about.page import as_json, kind_named, write_page

    record = as_json(kind_named(args.experiment), args.component)
    if args.json:
        write_json(record)
    else:
        write_page(record)
    return 0


def _heading(composition: Composition) -> list[str]:
    """Returns what the experiment is, in a line, and how large its model is."""
    from kanawa.cli.about.counts import count_of
    from kanawa.cli.about.summary import summary
    from kanawa.composition.naming import catalogued_kind
    from kanawa.plugins import host

    lines = []
    asked = composition.asked
    kind = catalogued_kind(asked) if isinstance(asked, str) else None
    if kind is not None:
        state = next(s for s in host().components(kind) if asked in (s.name, s.key))
        lines.append(f"{asked}: {summary(state)}")
        if composition.changes:
            # The line above is of what was asked for, which a change may have left little of.
            lines.append(f"changed by {', '.join(composition.changes)}")
    if composition.source is not None:
        lines.append(f"{composition.name}: derived from {composition.source}")
    count = count_of(composition.config)
    if count is not None:
        lines.append(str(count))
    return lines


def _write_why(path: str, rows: Sequence[Why], as_json: bool) -> None:
    if as_json:
        write_json([row.as_json() for row in rows])
    else:
        write(f"{path} = {rows[-1].value}" if rows else f"{path} was never set")
        write_table(("SET BY", "VALUE", "WHERE"), [(row.set_by, row.value, row.where) for row in rows])


def _write_diff(changes: Sequence[Change], as_json: bool) -> None:
    if as_json:
        write_json([change.to_json() for change in changes])
    elif changes:
        write("\n".join(str(change) for change in changes))
    else:
        write("no differences")


COMMAND = Command(
    name="show",
    help="show an experiment's resolved config, its origins or its differences; or a component of the catalog",
    configure=_configure,
    run=_run,
    example=(
        "kanawa show quickstart --set learner.optimizer.weight_decay=0.01\n"
        "kanawa show gemma3-1b --on v5e-8 --diff gemma3-1b\n"
        "kanawa show quickstart --why model.stack\n"
        "kanawa show quickstart --modify moe --diff quickstart\n"
        "kanawa show modifier moe\n"
        "kanawa show optimizer adamw --json"
    ),
)
