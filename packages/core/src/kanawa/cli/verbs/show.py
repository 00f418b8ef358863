"""`kanawa show EXPERIMENT`: the resolved config, its origins, its differences from another."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kanawa.cli.arguments import compose_from, experiment_arguments, json_argument
from kanawa.cli.output import write, write_json, write_table
from kanawa.errors import UsageError
from kanawa.plugins import Command

if TYPE_CHECKING:
    from kanawa.config import Config


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="show",
        help="show an experiment's resolved config, its origins, or its differences",
        configure=_configure,
        run=_run,
        example=(
            "kanawa show quickstart --set learner.optimizer.learning_rate=1e-3\n"
            "kanawa show quickstart --why model.stack\n"
            "kanawa show quickstart --diff runs/quickstart"
        ),
    )


def _configure(parser: argparse.ArgumentParser) -> None:
    experiment_arguments(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--why", metavar="PATH", help="who set this value, first to last; last wins")
    what.add_argument(
        "--diff",
        metavar="OTHER",
        help="what changed from OTHER, an experiment as it stands, a run's folder or a config.json",
    )
    form = parser.add_mutually_exclusive_group()
    json_argument(form)
    form.add_argument("--text", action="store_true", help="write one path and value a line (default)")


def _run(args: argparse.Namespace) -> int:
    from kanawa.config import to_json, to_text

    cfg = compose_from(args).config
    if args.why:
        _why(cfg, args.why, args.json)
    elif args.diff:
        _diff(_other(args.diff), cfg, args.json)
    elif args.json:
        write_json(to_json(cfg))
    else:
        write(to_text(cfg))
    return 0


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
    """Returns the config in a run's folder or file, or else of the experiment with that name."""
    from kanawa.composition.experiment import compose
    from kanawa.composition.saved import read_saved, recorded_plugins

    path = Path(other)
    if path.is_dir():
        path /= "config.json"
    elif not path.is_file():
        if path.suffix or len(path.parts) > 1:
            message = f"--diff {other}: no such folder or file"
            raise UsageError(message)
        return compose(other).config
    return read_saved(_read_json(path), recorded_plugins(path.parent))


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"can't read the config in {path}: {error}; expected a run's config.json"
        raise UsageError(message) from error
