"""Prints the LoC-complexity table: statements by class, and the fits (docs/loc-complexity.md)."""

import sys

from loc_complexity.controls import CONTROLS
from loc_complexity.measure import everything
from loc_complexity.ours import Ours
from loc_complexity.shipped import shipped_table


def table() -> str:
    """Returns the table as Markdown."""
    lines = [
        "| system | feature | D (one variant) | I | C | S | fit of I + C + S | fit of D |",
        "|---|---|--:|--:|--:|--:|---|---|",
    ]
    for found in everything((Ours(), *CONTROLS)):
        one = found.costs[1, 1]
        counts = (one.definition, one.existing, one.configuration, one.side_tables)
        cells = (found.system, found.feature, *counts, found.spread, found.definition)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table() + "\n\n" + shipped_table() + "\n")
