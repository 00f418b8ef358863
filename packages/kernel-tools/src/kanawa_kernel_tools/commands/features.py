"""`kanawa kernels --features`: what the installed kernels take, as tables, on the terminal or into a page."""

from __future__ import annotations

import argparse
import pathlib
from typing import TYPE_CHECKING

from kanawa.cli.output import write, write_json
from kanawa.errors import UsageError

if TYPE_CHECKING:
    from kanawa_kernel_tools.features.tables import FeatureTable

BEGIN, END = "<!-- generated: kernel features -->", "<!-- end generated: kernel features -->"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds --features and --into."""
    parser.add_argument(
        "--features",
        action="store_true",
        help="show what each installed kernel supports, by its own account, and what is left to the reference",
    )
    parser.add_argument(
        "--into", metavar="FILE", help="with --features: put the tables into a page, between its two marks for them"
    )


def show_features(args: argparse.Namespace) -> int:
    """Shows the tables of every operation."""
    from kanawa_kernel_tools.features.tables import feature_tables

    tables = feature_tables()
    if args.json:
        write_json([table.as_json() for table in tables])
    elif args.into:
        put_into(pathlib.Path(args.into), as_markdown(tables))
        write(f"{args.into}: {len(tables)} operations, {sum(len(table.kernels) for table in tables)} kernels")
    else:
        write(as_markdown(tables))
    return 0


def as_markdown(tables: list[FeatureTable]) -> str:
    """Returns all tables as Markdown."""
    return "\n\n".join(part for table in tables for part in _parts(table))


def put_into(page: pathlib.Path, text: str) -> None:
    """Replaces the text between the page's marks; raises UsageError where it has none."""
    old = page.read_text(encoding="utf-8") if page.is_file() else ""
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        message = f"{page} has no place for the tables; put the two lines {BEGIN} and {END} into it"
        raise UsageError(message)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def _parts(table: FeatureTable) -> list[str]:
    short = [name.removeprefix(f"{table.operation}.") for name in table.kernels]
    taken = _markdown([f"`{table.operation}`", *short], [[label, *cells] for label, cells in table.rows.items()])
    if not table.chosen:
        return [taken]
    platforms = list(next(iter(table.chosen.values())))
    rows = [[label, *(_marked(chosen[p]) for p in platforms)] for label, chosen in table.chosen.items()]
    return [taken, _markdown([f"`{table.operation}` gets", *platforms], rows)]


def _marked(kernel: str) -> str:
    """Returns the kernel, the reference in bold: those cells are what is missing."""
    return f"**{kernel}**" if kernel == "reference" else kernel


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    # A bar in a cell would begin another.
    lines = [[cell.replace("|", "or") for cell in row] for row in (head, ["---"] * len(head), *rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
