"""`kanawa report`: one self-contained HTML page about runs."""

import argparse
import contextlib
from pathlib import Path

from kanawa.cli.output import write, write_json
from kanawa.errors import UsageError
from kanawa.local_path import local_path
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
    from kanawa.contracts import open_storage

    from kanawa_runtime.report import run_figures, write_report
    from kanawa_runtime.runs.run_path import check_is_run
    from kanawa_runtime.storage.mirror import readable_folder
    from kanawa_runtime.storage.place import stands_for

    page = _page(local_path(args.out, "--out")) if args.out else None
    runs = [readable_folder(text) for text in args.run_directories]
    for path in runs:
        check_is_run(path)
    out: Path | str = page or runs[0] / "report.html"
    write_report(runs, Path(out))
    address = stands_for(runs[0])
    if page is None and address is not None:
        with contextlib.closing(open_storage(address)) as storage:
            storage.write("report.html", Path(out).read_bytes())
        out = f"{address}/report.html"
    if args.json:
        write_json({"report": str(out), "runs": run_figures(runs)})
    else:
        write(f"wrote {out}")
    return 0


def _page(out: Path) -> Path:
    """Returns the file to write; raises UsageError for a folder, or one in a folder that isn't there."""
    if out.is_dir():
        message = f"--out {out} is a folder, expected a file such as {out / 'report.html'}"
        raise UsageError(message)
    if not out.parent.is_dir():
        message = f"--out {out}: there is no folder {out.parent}; make it first"
        raise UsageError(message)
    return out
