"""Plans the headline workloads whose compilers are installed, beside what others published and MaxText's programs.

Run: `python benchmarks/plan_headlines.py [--json] [--only llama2-7b:v5p-512] [--from FOLDER]`. Prints a table: whether
it fits, seconds of a whole step with kernels and exposed communication, the published ones, and the compiler's cycles
(which leave kernels and collectives out) by those of MaxText's step at its own best policy that fits.
Predicted seconds are the plan's own, by the calibration of the compiler that made it. `--from` reads
`EXPERIMENT.TARGET.json` files that `kanawa plan --json` wrote elsewhere, where another compiler is.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from kanawa.plugins import PublishedStep
from kanawa_parallel.plan.cost.calibration import published_steps

#: MaxText's steps of the same batch and topology, each with its policy, flags and versions (`maxtext_cycles.py`).
MAXTEXT = Path(__file__).parent / "results" / "maxtext.json"


def planned(work: PublishedStep, folder: Path | None) -> dict[str, Any] | None:
    """Returns the plan of a workload, made here or read; None with a word on why not."""
    if folder is not None:
        path = folder / f"{work.experiment}.{work.target}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    begin = time.perf_counter()
    command = [sys.executable, "-m", "kanawa.cli", "plan", work.experiment, "--on", work.target, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(f"{work.experiment} on {work.target}: {done.stderr.strip().splitlines()[-1]}\n")
        return None
    return {**json.loads(done.stdout), "wall_seconds": time.perf_counter() - begin}


def row(work: PublishedStep, plan: dict[str, Any]) -> dict[str, Any]:
    """Returns what is worth keeping of a plan, with its error."""
    predicted = plan["step_seconds"]
    kept = {
        "experiment": work.experiment,
        "target": work.target,
        "compiled": plan["compiled"],
        "fits": plan["fits"],
        "memory_gib": plan["memory_per_device_bytes"] / 2**30,
        "temporaries_gib": plan["memory"]["temporaries"] / 2**30,
        "estimated_seconds": plan["estimated_seconds"],
        "unestimated_seconds": plan["unestimated_seconds"],
        "calibration": plan["calibration"]["said"],
        "predicted_seconds": predicted,
        "exposed_seconds": plan["step_seconds_by"].get("exposed_communication", 0.0),
        "predicted_between": plan["step_seconds_between"],
        "published_seconds": work.seconds,
        "error": predicted and predicted / work.seconds - 1,
        "mfu": plan["mfu"],
        "flops_ratio": plan["flops_per_step"] / plan["model_flops_per_step"],
        "binds": plan["binds"],
        "compile_seconds": plan["compile_seconds"],
        "versions": plan["versions"],
    }
    if plan["estimated_cycles"]:
        # As MaxText's were summed: what the compiler estimates, without kernels and collectives, which it doesn't.
        kept["cycles"] = plan["estimated_cycles"]
        kept["maxtext"] = [
            {**theirs, "ratio": plan["estimated_cycles"] / theirs["cycles"]} for theirs in maxtext_best(work)
        ]
    return kept


def maxtext_best(work: PublishedStep) -> list[dict[str, Any]]:
    """Returns MaxText's quickest step of a workload for each choice of compiler flags that was measured."""
    best: dict[tuple[str, ...], dict[str, Any]] = {}
    for theirs in json.loads(MAXTEXT.read_text(encoding="utf-8")):
        if (theirs["experiment"], theirs["target"]) == (work.experiment, work.target):
            flags = tuple(theirs["flags"])
            best[flags] = min(theirs, best.get(flags, theirs), key=lambda each: each["cycles"])
    return list(best.values())


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows for people, MaxText's programs below ours."""
    names = ("workload", "GiB", "step s", "exposed s", "published s", "cycles", "ours / theirs")
    lines = [_line(*names)]
    for each in rows:
        lines.append(
            _line(
                f"{each['experiment']} on {each['target']}",
                f"{each['memory_gib']:.1f}" if each["fits"] else "too much",
                *(_number(each[name], ".2f") for name in ("predicted_seconds", "exposed_seconds", "published_seconds")),
                _number(each.get("cycles"), ".4g"),
            )
        )
        for theirs in each.get("maxtext", ()):
            figures = _line("  MaxText", *[""] * 4, _number(theirs["cycles"], ".4g"), _number(theirs["ratio"], ".3f"))
            libtpu = theirs["versions"].get("libtpu", "unknown")
            lines.append(f"{figures}  {', '.join((theirs['policy'], f'libtpu {libtpu}', *theirs['flags']))}")
    versions = rows[0]["versions"] if rows else {}
    lines.append("ours: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    return "\n".join(lines)


def _line(workload: str, *figures: str) -> str:
    return f"{workload:<30}" + "".join(f"{figure:>14}" for figure in figures)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def main() -> int:
    """Plans or reads each workload in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--only", action="append", default=[], metavar="EXPERIMENT:TARGET")
    parser.add_argument("--from", dest="folder", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    rows = []
    for work in published_steps():
        if args.only and f"{work.experiment}:{work.target}" not in args.only:
            continue
        plan = planned(work, args.folder)
        if plan is not None:
            rows.append(row(work, plan))
    sys.stdout.write((json.dumps({"rows": rows}, indent=2) if args.json else table(rows)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
