"""`kanawa eval`: the held-out loss of a run's checkpoint."""

import argparse
import json

from kanawa.cli.arguments import DATA_HELP
from kanawa.cli.output import write
from kanawa.plugins import Command


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="eval",
        help="evaluate a run on its held-out split",
        configure=configure,
        run=run,
        example="kanawa eval runs/quickstart --json\nkanawa eval downloads/my-model --data 'mytext/**/*.txt'",
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("run_directory", metavar="RUN", help="a run directory, or a Hugging Face folder")
    parser.add_argument("--data", metavar="DATA", help=DATA_HELP)
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint to use (default: the newest)")
    parser.add_argument("--on", metavar="TARGET", help="target to run on (default: this machine)")
    parser.add_argument("--set", action="append", metavar="PATH=VALUE", help="override a config value")
    parser.add_argument("--json", action="store_true", help="write JSON for a machine to read")


def run(args: argparse.Namespace) -> int:
    """Evaluates; returns 0."""
    import kanawa as kn

    opened = kn.open(args.run_directory, on=args.on, set=args.set or (), step=args.step)
    record = opened.evaluate(data=args.data).as_json()
    write(json.dumps(record) if args.json else "\n".join(f"{k:>14}  {v}" for k, v in record.items()))
    return 0
