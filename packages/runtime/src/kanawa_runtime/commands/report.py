"""`kanawa report`: one self-contained HTML page about runs."""

import argparse
from pathlib import Path

from kanawa.cli.output import write
from kanawa.plugins import Command


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="report",
        help="write one HTML page about runs",
        configure=configure,
        run=run,
        example="kanawa report runs/a runs/b --out compare.html",
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("run_directories", nargs="+", metavar="RUN", help="run directories")
    parser.add_argument("--out", metavar="FILE", help="page to write (default: RUN/report.html of the first)")


def run(args: argparse.Namespace) -> int:
    """Writes the page; returns 0."""
    from kanawa_runtime.report import write_report

    runs = [Path(text) for text in args.run_directories]
    out = Path(args.out) if args.out else runs[0] / "report.html"
    write_report(runs, out)
    write(f"wrote {out}")
    return 0
