"""`kanawa show EXPERIMENT`: the resolved config, its origins, its differences; `show KIND NAME`: a component."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kanawa.cli.arguments import EXPERIMENT_HELP, compose_from, composition_arguments, json_argument
from kanawa.cli.output import write, write_json, write_message, write_table
from kanawa.errors import UsageError
from kanawa.plugins import Command

if TYPE_CHECKING:
    from kanawa.composition.experiment import Composition
    from kanawa.config import Config


def command() -> Command:
    """Returns the verb."""
    return Command(
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
        help="what changed from OTHER, an experiment as it stands, a run's folder or a config.json",
    )
    form = parser.add_mutually_exclusive_group()
    json_argument(form)
    form.add_argument("--text", action="store_true", help="write one path and value a line (default)")


def _run(args: argparse.Namespace) -> int:
    if args.component is not None:
        return _component(args)
    from kanawa.config import to_json, to_text

    composition = _composed(args)
    cfg = composition.config
    if args.why:
        _why(cfg, args.why, args.json)
    elif args.diff:
        _diff(_other(args.diff), cfg, args.json)
    elif args.json:
        write_json(to_json(cfg))
    else:
        write("".join(f"# {line}\n" for line in _heading(composition)) + to_text(cfg))
    return 0


def _component(args: argparse.Namespace) -> int:
    from kanawa.cli.about.kinds import kind_named
    from kanawa.cli.about.page import as_json, write_page

    record = as_json(kind_named(args.experiment), args.component)
    if args.json:
        write_json(record)
    else:
        write_page(record)
    return 0


def _composed(args: argparse.Namespace) -> Composition:
    """Returns what was asked for; of a model that has no experiment, its config alone, and says so."""
    from kanawa.composition.experiment import compose
    from kanawa.composition.naming import NoTemplateError

    try:
        return compose_from(args)
    except NoTemplateError as error:
        if args.data is not None:
            raise
        write_message(f"kanawa: this is the model's config alone: {error}")
        return compose(error.model, modifiers=args.modify, overrides=args.set)


def _heading(composition: Composition) -> list[str]:
    """Returns what the experiment is, in a line, and how large its model is."""
    from kanawa.cli.about.counts import count_of, short
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
        met = f", of which a token meets {short(count.active)}" if count.active != count.total else ""
        lines.append(f"{count.total:,} parameters ({short(count.total)}){met}")
    return lines


def _why(cfg: Config, path: str, as_json: bool) -> None:
    rows = [
        {
            "path": path,
            "value": origin.value,
            "set_by": f"{origin.stage} {origin.detail}".strip(),
            "where": origin.where,
        }
        for origin in cfg.origin_history(path)
    ]
    if as_json:
        write_json(rows)
    else:
        write(f"{path} = {rows[-1]['value']}" if rows else f"{path} was never set")
        write_table(("SET BY", "VALUE", "WHERE"), [(r["set_by"], r["value"], r["where"]) for r in rows])


def _diff(old: Config, new: Config, as_json: bool) -> None:
    from kanawa.config import diff

    changes = diff(old, new)
    if as_json:
        write_json([change.to_json() for change in changes])
    elif changes:
        write("\n".join(str(change) for change in changes))
    else:
        write("no differences")


def _other(other: str) -> Config:
    """Returns the config in a run's folder or file, or else of the experiment or model with that name."""
    from kanawa.composition.experiment import compose
    from kanawa.composition.saved import read_saved, recorded_plugins
    from kanawa.local_path import local_path

    path = local_path(other, "--diff")
    if path.is_dir():
        path /= "config.json"
    elif not path.is_file():
        if path.suffix == ".json" or len(path.parts) > 1:
            message = f"--diff {other}: no such folder or file"
            raise UsageError(message)
        return compose(other).config
    return read_saved(_read_json(path), recorded_plugins(path.parent))


def _read_json(path: Path) -> Any:
    from kanawa.guarded_read import UnreadableFileError, guarded_json

    try:
        return guarded_json(path, most=2**26)
    except (OSError, UnreadableFileError) as error:
        message = f"can't read the config in {path}: {error}; expected a run's config.json"
        raise UsageError(message) from error
