"""`kanawa eval`: the held-out loss of a run's checkpoint."""

import argparse
import json
from typing import Any

from kanawa.cli.arguments import DATA_HELP
from kanawa.cli.output import write
from kanawa.plugins import Command


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="eval",
        help="evaluate a run on its held-out split, or on other data",
        configure=configure,
        run=run,
        example="kanawa eval runs/quickstart --json\nkanawa eval downloads/my-model --data 'mytext/**/*.txt'",
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("run_directory", metavar="RUN", help="a run directory, or a Hugging Face folder")
    about = f"{DATA_HELP}; all of what files hold is read. Repeat for several"
    parser.add_argument("--data", action="append", metavar="[NAME=]DATA", help=about)
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint to use (default: the newest)")
    parser.add_argument("--on", metavar="TARGET", help="target to run on (default: this machine)")
    parser.add_argument("--set", action="append", metavar="PATH=VALUE", help="override a config value")
    parser.add_argument("--json", action="store_true", help="write JSON for a machine to read")


def run(args: argparse.Namespace) -> int:
    """Evaluates; returns 0."""
    import kanawa as kn

    from kanawa_runtime.data.other_data import named_data

    opened = kn.open(args.run_directory, on=args.on, set=args.set or (), step=args.step)
    named = named_data(args.data or ())
    if len(named) < 2:
        record = opened.evaluate(data=next(iter(named.values()), None)).as_json()
        write(json.dumps(record) if args.json else _shown(record))
        return 0
    records = {name: opened.evaluate(data=data).as_json() for name, data in named.items()}
    write(json.dumps(records) if args.json else "\n".join(f"{name}\n{_shown(one)}" for name, one in records.items()))
    return 0


def _shown(record: dict[str, Any]) -> str:
    return "\n".join(f"{key:>15}  {value}" for key, value in record.items())
