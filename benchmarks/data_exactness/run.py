"""Drills one data pipeline and prints a row of the table as JSON, with versions.

    python benchmarks/data_exactness/run.py kanawa --kills 1000
    python benchmarks/data_exactness/run.py datasets|grain|streaming --kills 100

Each tool in its own environment; see `benchmarks/results/` for the commands of the committed table.
"""

import argparse
import dataclasses
import importlib
import importlib.metadata
import json
import platform
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import drill

#: What changes between attempts, in columns of the table.
CHANGES = {
    "no kill": (False, False),
    "kills alone": (False, False),
    "hosts change": (True, False),
    "weights change": (False, True),
    "hosts and weights change": (True, True),
}
VERSIONS = {
    "kanawa": ("kanawa-runtime", "grain"),
    "kanawa_shards": ("kanawa-runtime", "grain"),
    "streaming": ("mosaicml-streaming",),
}


def main() -> None:
    """Runs the drills of one tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--drills", type=int, default=1, help="so many drills of so many kills, each of other draws")
    parser.add_argument("--only", choices=list(CHANGES), help="one column of the table")
    arguments = parser.parse_args()
    module = importlib.import_module(f"with_{arguments.tool}")
    names = VERSIONS.get(arguments.tool, (arguments.tool,))
    versions = {name: importlib.metadata.version(name) for name in names}
    _write({"python": platform.python_version(), **versions})
    for change, (hosts, weights) in CHANGES.items():
        if arguments.only not in (None, change):
            continue
        drills = ((seed, *each) for seed in range(arguments.drills) for each in module.pipelines(arguments.kills))
        for seed, name, pipeline, data in drills:
            began = time.perf_counter()
            row = {"pipeline": name, "change": change}
            try:
                kills = 0 if change == "no kill" else arguments.kills
                found = drill.run(pipeline, data, kills=kills, change_hosts=hosts, change_weights=weights, seed=seed)
                row |= dataclasses.asdict(found)
                row |= {"killed_in": dict(pipeline.killed_in)} if hasattr(pipeline, "killed_in") else {}
            except Exception as error:  # noqa: BLE001 - what a tool refuses is a result
                row["refused"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            _write({**row, "seconds": round(time.perf_counter() - began, 1)})


def _write(record: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
