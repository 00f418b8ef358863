"""Fits what devices reach of their figures on published steps, and says how far each is from its plan.

Run: `python benchmarks/plan_calibration [--rows FILE]… [--cache DIR] [--only ID]… [--hold-out ID]… [--compile-only]`.
Rows are JSON objects as in `steps.json` beside this file; each is compiled once (minutes; for a GPU with its compiler's
wheels) and kept in the cache. Prints, for each group of devices, the calibration, each row's error when it is fitted
on, and its error when the others are: what a step that nobody fitted may expect.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np
from compiling import compiled
from fitting import GROUPS, Group, Planned, fitted, left_out
from kanawa.errors import KanawaError

_HERE = Path(__file__).parent
#: A plan is never sold as better than this on either side, and the fewer rows there are the less their spread says.
_LEAST = 0.10


def interval(errors: list[float], roundings: list[float]) -> tuple[float, float]:
    """Returns what to multiply a plan with for the least and the most that steps took.

    Two standard deviations of the errors of left-out rows, and every row with the rounding of its figure.
    """
    spread = max(_LEAST + _LEAST / len(errors), 2 * math.sqrt(float(np.mean(np.square(errors)))))
    taken = [-error for error in errors]
    low = min([-spread, *(t - r for t, r in zip(taken, roundings, strict=True))])
    high = max([spread, *(t + r for t, r in zip(taken, roundings, strict=True))])
    return math.floor(100 * math.exp(low)) / 100, math.ceil(100 * math.exp(high)) / 100


def report(group: Group, rows: list[Planned], held_out: list[Planned]) -> None:
    """Prints a group's calibration and its rows' errors, in percent of the published time."""
    said = sys.stdout.write
    chosen = fitted(rows, group.start, group.names)
    others = left_out(rows, group.start, group.names)
    roundings = [row.rounding / row.row["step_seconds"] for row in rows]
    said(f"\n{' '.join(group.devices)}: " + ", ".join(f"{n} {getattr(chosen, n):.3f}" for n in group.names))
    said(f"; interval {interval(others, roundings)}\n")
    for row, other in zip(rows, others, strict=True):
        published = row.row["step_seconds"]
        parts = row.split(chosen)
        said(
            f"  {row.row['id']}: published {published} s, planned {parts.total:.4g} s "
            f"({math.expm1(row.error(chosen)):+.1%}), left out {published * math.exp(other):.4g} s "
            f"({math.expm1(other):+.1%}); at the figures {row.split(type(chosen)()).total:.4g} s, compute "
            f"{parts.compute:.3g}, memory {parts.memory:.3g}, exposed {sum(parts.exposed.values()):.3g}; "
            f"rounding {roundings[rows.index(row)]:.1%}\n"
        )
    for row in held_out:
        said(f"  held out {row.row['id']}: {row.split(chosen).total:.4g} s ({math.expm1(row.error(chosen)):+.1%})\n")


def main() -> int:
    """Compiles what isn't in the cache, fits and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="append", type=Path, default=[], metavar="FILE")
    parser.add_argument("--cache", type=Path, default=Path("plan-calibration"), metavar="DIR")
    parser.add_argument("--only", action="append", default=[], metavar="ID")
    parser.add_argument("--hold-out", action="append", default=[], metavar="ID")
    parser.add_argument("--compile-only", action="store_true")
    args = parser.parse_args()
    rows = [row for file in args.rows or [_HERE / "steps.json"] for row in json.loads(file.read_text("utf-8"))]
    planned = []
    for row in rows:
        if args.only and row["id"] not in args.only:
            continue
        try:
            planned.append(Planned(compiled(row, args.cache)))
        except KanawaError as error:
            sys.stderr.write(f"{row['id']}: {str(error).splitlines()[0]}\n")
    if args.compile_only:
        return 0
    for group in GROUPS:
        mine = [row for row in planned if row.device.name in group.devices]
        held_in = [row for row in mine if row.row["id"] not in args.hold_out]
        if held_in:
            report(group, held_in, [row for row in mine if row not in held_in])
    return 0


if __name__ == "__main__":
    sys.exit(main())
