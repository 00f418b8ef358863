"""`kanawa report`: one self-contained HTML page about runs."""

import argparse

from kanawa.cli.output import write, write_json
from kanawa.plugins import Command


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="report",
        help="write one HTML page about runs",
        configure=configure,
        run=run,
        example="kanawa report runs/a\nkanawa report runs/a runs/b --out compare.html\nkanawa report runs/a --json",
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("run_directories", nargs="+", metavar="RUN", help="run directories")
    parser.add_argument("--out", metavar="FILE", help="page to write (default: RUN/report.html of the first)")
    parser.add_argument("--json", action="store_true", help="write the key figures as JSON as well, for a machine")


def run(args: argparse.Namespace) -> int:
    """Writes the page; returns 0. Raises NoRunError, and writes nothing, where a run isn't there."""
    from kanawa_runtime.api.run import Run
    from kanawa_runtime.report import run_figures

    first, *others = [Run(text) for text in args.run_directories]
    page = first.report(*others, out=args.out)
    if args.json:
        write_json({"report": str(page), "runs": run_figures([one.folder for one in (first, *others)])})
    else:
        write(f"wrote {page}")
    return 0
