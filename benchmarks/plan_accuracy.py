"""Quick plans of published steps at the published placement, beside the published time.

Run: `python benchmarks/plan_accuracy.py [--rows FILE]… [--only ID]… [--json FILE]`. Rows are objects as in
`plan_calibration/published.json`, whose `fitted` says that a calibration was fitted on the row. Prints a markdown table
and, for each class of rows, the median and the worst error of those that weren't fitted and of all.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent / "plan_calibration"
sys.path.insert(0, str(_HERE))

from kanawa.errors import KanawaError  # noqa: E402
from kanawa_parallel.plan.quick.estimate import estimated  # noqa: E402
from rows import Row, composed  # noqa: E402

#: Devices of which dense bf16 steps have been published for years.
KNOWN = ("v5e", "v5p", "v6e", "tpu7x", "a100", "h100", "h200", "b200", "trn2")


def rows_of(file: Path) -> list[Row]:
    """Returns the rows of a file, each with its whole shape."""
    held = json.loads(file.read_text("utf-8"))
    if isinstance(held, list):
        return held
    return [row | {"shape": held["shapes"][row["model"]] | row.get("shape", {})} for row in held["steps"]]


def class_of(row: Row) -> str:
    """Returns which bound a row has."""
    known = row["target"].partition("-")[0] in KNOWN and "experts" not in row["shape"]
    return "dense bf16" if known and row.get("precision", "bf16")[:4] in ("bf16", "fp16") else "other"


def planned(row: Row) -> dict[str, Any]:
    """Returns the plan of one row, or why there is none."""
    begin = time.perf_counter()
    try:
        seconds = estimated(composed(row), "train_step").times.seconds
    except (KanawaError, ValueError, TypeError, KeyError) as error:
        return {"error": str(error).splitlines()[0] if str(error) else type(error).__name__}
    return {
        "seconds": seconds.total,
        "compute": seconds.compute,
        "memory": seconds.memory,
        "exposed": {f"{axes} over {link}": value for (axes, link), value in seconds.exposed.items()},
        "off": seconds.total / row["step_seconds"] - 1,
        "planned_in": time.perf_counter() - begin,
    }


def summary(results: list[tuple[Row, dict[str, Any]]]) -> list[str]:
    """Returns a line for each class and split."""
    lines = []
    for name in ("dense bf16", "other"):
        for split, fitted in (("fitted", {True}), ("not fitted", {False}), ("all", {True, False})):
            mine = [
                abs(plan["off"])
                for row, plan in results
                if class_of(row) == name and bool(row.get("fitted")) in fitted and "off" in plan
            ]
            missing = sum(class_of(row) == name and "error" in plan for row, plan in results) if split == "all" else 0
            if mine:
                text = f"{name}, {split}: {len(mine)} rows, median {statistics.median(mine):.1%}, worst {max(mine):.1%}"
                lines.append(text + (f"; {missing} have no plan" if missing else ""))
    return lines


def main() -> int:
    """Plans every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="append", type=Path, default=[], metavar="FILE")
    parser.add_argument("--only", action="append", default=[], metavar="ID")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    rows = [row for file in args.rows or [_HERE / "published.json"] for row in rows_of(file)]
    results = []
    said = sys.stdout.write
    said("| step | published s | planned s | error | compute, memory, exposed s |\n|---|--:|--:|--:|---|\n")
    for row in rows:
        if args.only and not any(one in row["id"] for one in args.only):
            continue
        plan = planned(row)
        results.append((row, plan))
        name = row["id"] + (" *" if row.get("fitted") else "")
        if "error" in plan:
            said(f"| {name} | {row['step_seconds']:.4g} | – | – | {plan['error']} |\n")
            continue
        parts = f"{plan['compute']:.3g}, {plan['memory']:.3g}, {sum(plan['exposed'].values()):.3g}"
        said(f"| {name} | {row['step_seconds']:.4g} | {plan['seconds']:.4g} | {plan['off']:+.1%} | {parts} |\n")
        sys.stdout.flush()
    said("\n" + "\n".join(summary(results)) + "\n")
    if args.json:
        args.json.write_text(json.dumps([{"id": row["id"], **plan} for row, plan in results], indent=1), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
