"""Plans the headline workloads whose compilers are installed, and says how far from what others published.

Run: `python benchmarks/plan_headlines.py [--only llama2-7b:v5p-512] [--from FOLDER]`. Prints one JSON object.
A family's factor is published by estimated seconds of its first workload below; the others' errors follow from it.
`--from` reads `EXPERIMENT.TARGET.json` files that `sashimono plan --json` wrote elsewhere, where another compiler is.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sashimono_parallel.plan.calibration import PUBLISHED, Published

#: Kinds of device by the first letters of a target; a factor holds for a kind.
FAMILIES = {"v5p": "tpu-3d", "h100": "hopper", "b200": "blackwell", "trn2": "trainium"}
#: Cycles of MaxText's step, the same batch and topology, compiled with the same libtpu under full remat.
MAXTEXT_CYCLES = {"llama2-7b": 4.387e9, "llama2-70b": 2.062e10}


def planned(work: Published, folder: Path | None) -> dict[str, Any] | None:
    """Returns the plan of a workload, made here or read; None with a word on why not."""
    if folder is not None:
        path = folder / f"{work.experiment}.{work.target}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    begin = time.perf_counter()
    command = [sys.executable, "-m", "sashimono.cli", "plan", work.experiment, "--on", work.target, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(f"{work.experiment} on {work.target}: {done.stderr.strip().splitlines()[-1]}\n")
        return None
    return {**json.loads(done.stdout), "wall_seconds": time.perf_counter() - begin}


def row(work: Published, plan: dict[str, Any], factors: dict[str, float]) -> dict[str, Any]:
    """Returns what is worth keeping of a plan, with the error of its family's factor."""
    family = FAMILIES[work.target.partition("-")[0]]
    estimate = plan["estimated_seconds"]
    first = family not in factors
    factor = factors.setdefault(family, work.seconds / estimate)
    found = {
        "experiment": work.experiment,
        "target": work.target,
        "compiled": plan["compiled"],
        "fits": plan["fits"],
        "memory_gib": plan["memory_per_device_bytes"] / 2**30,
        "temporaries_gib": plan["memory"]["temporaries"] / 2**30,
        "estimated_seconds": estimate,
        "factor": factor,
        "predicted_seconds": estimate * factor,
        "published_seconds": work.seconds,
        "error": None if first else estimate * factor / work.seconds - 1,
        "mfu": plan["model_flops_per_step"] / (plan["peak_flops"] * plan["chips"] * estimate * factor),
        "flops_ratio": plan["flops_per_step"] / plan["model_flops_per_step"],
        "binds": plan["binds"],
        "compile_seconds": plan["compile_seconds"],
        "versions": plan["versions"],
    }
    if plan["estimated_cycles"]:
        # All that the estimate holds, kernels and exposed communication included, at v5p's 1.75 GHz.
        found["cycles"] = estimate * 1.75e9
        found["cycles_by_maxtexts"] = found["cycles"] / MAXTEXT_CYCLES.get(work.experiment, float("nan"))
    return found


def main() -> int:
    """Plans or reads each workload in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="EXPERIMENT:TARGET")
    parser.add_argument("--from", dest="folder", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    factors: dict[str, float] = {}
    rows = []
    for work in PUBLISHED:
        if args.only and f"{work.experiment}:{work.target}" not in args.only:
            continue
        plan = planned(work, args.folder)
        if plan is not None:
            rows.append(row(work, plan, factors))
    sys.stdout.write(json.dumps({"factors": factors, "rows": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
