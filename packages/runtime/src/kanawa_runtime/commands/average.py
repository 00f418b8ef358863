"""`kanawa average`: a run whose parameters are the mean of several checkpoints of another."""

import argparse
import json
from pathlib import Path

from kanawa.cli.output import write
from kanawa.errors import UsageError
from kanawa.plugins import Command


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="average",
        help="average checkpoints of a run into a new one",
        configure=configure,
        run=run,
        example=(
            "kanawa average runs/quickstart --last 3\n"
            "kanawa average runs/quickstart --steps 800,900,1000 --out runs/averaged"
        ),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("run_directory", metavar="RUN", help="a run directory, or an address such as s3://bucket/run")
    parser.add_argument("--steps", metavar="A,B,…", help="checkpoints to average (default: all that are kept)")
    parser.add_argument("--last", type=int, metavar="N", help="average the newest N checkpoints")
    parser.add_argument("--out", metavar="DIR", help="new run directory (default: RUN-average)")
    parser.add_argument("--json", action="store_true", help="print one JSON object: run, steps")


def run(args: argparse.Namespace) -> int:
    """Averages; returns 0."""
    from kanawa.local_path import local_path

    from kanawa_runtime.process import prepare_process
    from kanawa_runtime.runs.averaging import average_checkpoints
    from kanawa_runtime.storage.mirror import readable_folder
    from kanawa_runtime.storage.place import address_of

    if args.steps and args.last:
        message = "give --steps or --last, not both"
        raise UsageError(message)
    if args.out is None and address_of(args.run_directory):
        message = f"{args.run_directory} is an address: say with --out in which new folder the average goes"
        raise UsageError(message)
    out = local_path(args.out, "--out") if args.out else Path(f"{Path(args.run_directory)}-average")
    prepare_process()
    steps = average_checkpoints(readable_folder(args.run_directory), out, _steps(args.steps), args.last)
    if args.json:
        write(json.dumps({"run": str(out), "steps": list(steps)}))
        return 0
    write(f"wrote {out}: the mean of steps {', '.join(map(str, steps))}; kanawa eval {out} evaluates it")
    return 0


def _steps(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return sorted({int(word) for word in text.split(",")})
    except ValueError as error:
        message = f"--steps is {text!r}, expected numbers with commas between them, such as 800,900,1000"
        raise UsageError(message) from error
