"""Plans the headline workloads whose compilers are installed, and says how far from what others published.

Run: `python benchmarks/plan_headlines.py [--only llama2-7b:v5p-512] [--from FOLDER]`. Prints one JSON object.
Predicted seconds are the plan's own, by the calibration of the compiler that made it.
`--from` reads `EXPERIMENT.TARGET.json` files that `kanawa plan --json` wrote elsewhere, where another compiler is.
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

#: Cycles of MaxText's step, the same batch and topology, compiled with the same libtpu under full remat.
MAXTEXT_CYCLES = {"llama2-7b": 4.387e9, "llama2-70b": 2.062e10}


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
    found = {
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
        found["cycles"] = plan["estimated_cycles"]
        if work.experiment in MAXTEXT_CYCLES:
            found["cycles_by_maxtexts"] = found["cycles"] / MAXTEXT_CYCLES[work.experiment]
    return found


def main() -> int:
    """Plans or reads each workload in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
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
    sys.stdout.write(json.dumps({"rows": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
