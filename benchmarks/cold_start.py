"""From process start to the lowered Llama-2 70B train step, FSDP over 512 simulated devices.

Run: `python benchmarks/cold_start.py [--runs 5]`. Each run is a fresh process; prints medians and the ratio of an
80-layer to an 8-layer model. Exit code 1 where a limit of the project is missed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

TOTAL_LIMIT, BUILD_LIMIT, DEPTH_LIMIT = 2.5, 0.6, 1.2

CHILD = """
import time
begun = time.perf_counter()
import jax, optax
from sashimono.compose import compose
from sashimono.compose.environment import environment
import sashimono_layers.recipes.llama, sashimono_runtime.train.trainer, sashimono_parallel.modifiers
imported = time.perf_counter()
found = compose("llama2-70b", "cpu-512", (), ["model.stack.num_layers=LAYERS"])
workload = found.workload()
program = workload.programs(environment(found, "abstract"))["train_step"]
built = time.perf_counter()
lowered = program.lower()
ended = time.perf_counter()
import json
print(json.dumps({"import": imported - begun, "build": built - imported, "trace_lower": ended - built}))
"""


def one(layers: int) -> dict[str, float]:
    """Returns seconds of one fresh process, `total` from its start as seen from outside."""
    import time

    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    started = time.perf_counter()
    command = [sys.executable, "-c", CHILD.replace("LAYERS", str(layers))]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(out.stdout.splitlines()[-1])
    return {**found, "total": time.perf_counter() - started}


def medians(layers: int, runs: int) -> dict[str, float]:
    """Returns the median of each part over `runs` processes."""
    found = [one(layers) for _ in range(runs)]
    return {name: statistics.median(f[name] for f in found) for name in found[0]}


def main() -> int:
    """Measures both depths; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    one(8)
    deep, shallow = medians(80, args.runs), medians(8, args.runs)
    inside = deep["build"] + deep["trace_lower"]
    depth = inside / (shallow["build"] + shallow["trace_lower"])
    found: dict[str, Any] = {"layers_80": deep, "layers_8": shallow, "build_trace_lower": inside, "depth_ratio": depth}
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    missed = deep["total"] > TOTAL_LIMIT or inside > BUILD_LIMIT or depth > DEPTH_LIMIT
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
