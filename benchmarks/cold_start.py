"""From process start to the lowered Llama-2 70B train step, FSDP over 512 simulated devices.

Run: `python benchmarks/cold_start.py [--runs 5]`. Each run is a fresh process; prints medians, the ratio of an
80-layer to an 8-layer model, and what JAX itself needs on this machine: a step of the same shapes written by hand
(`plain_llama`, in fp32 and with plain attention), traced and lowered in a process of its own between ours. Exit code 1
where a limit of the project is missed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

TOTAL_LIMIT, BUILD_LIMIT, DEPTH_LIMIT = 2.5, 0.6, 1.2

CHILD = """
import time
begun = time.perf_counter()
import jax, optax
from kanawa.composition import compose
from kanawa.composition.environment import environment
import kanawa_layers.recipes.llama, kanawa_runtime.train.trainer, kanawa_parallel.modifiers
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

PLAIN = """
import time
begun = time.perf_counter()
import functools, jax, optax, plain_llama as plain
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
imported = time.perf_counter()
shape = plain.Shape(layers=LAYERS, width=8192, heads=64, kv_heads=8, hidden=28672, vocab=32000)
mesh = AbstractMesh((512,), ("fsdp",), axis_types=(AxisType.Auto,))
def placed(x):
    largest = max(range(x.ndim), key=lambda i: x.shape[i] if x.shape[i] % 512 == 0 else 0, default=None)
    fits = largest is not None and x.shape[largest] % 512 == 0
    spec = PartitionSpec(*("fsdp" if fits and i == largest else None for i in range(x.ndim)))
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))
params = jax.eval_shape(functools.partial(plain.init, shape), jax.random.key(0))
opt = jax.eval_shape(plain.optimizer().init, params)
tokens = jax.ShapeDtypeStruct((1024, 4097), "int32", sharding=NamedSharding(mesh, PartitionSpec("fsdp")))
built = time.perf_counter()
step = jax.jit(functools.partial(plain.train_step, shape=shape), donate_argnums=(0, 1))
with jax.sharding.use_abstract_mesh(mesh):
    step.trace(*jax.tree.map(placed, (params, opt)), tokens).lower(lowering_platforms=("cpu",))
ended = time.perf_counter()
import json
print(json.dumps({"import": imported - begun, "build": built - imported, "trace_lower": ended - built}))
"""


def one(layers: int, child: str = CHILD) -> dict[str, float]:
    """Returns seconds of one fresh process, `total` from its start as seen from outside."""
    import time

    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parent)}
    started = time.perf_counter()
    command = [sys.executable, "-c", child.replace("LAYERS", str(layers))]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(out.stdout.splitlines()[-1])
    return {**found, "total": time.perf_counter() - started}


def medians(runs: int) -> dict[str, dict[str, float]]:
    """Returns the median of each part over `runs` processes of each kind, taken in turns."""
    kinds = {"layers_80": (80, CHILD), "layers_8": (8, CHILD), "plain_80": (80, PLAIN)}
    found = [{kind: one(*how) for kind, how in kinds.items()} for _ in range(runs)]
    parts = found[0]["layers_80"]
    return {kind: {part: statistics.median(f[kind][part] for f in found) for part in parts} for kind in kinds}


def main() -> int:
    """Measures both depths; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    one(8)
    found: dict[str, Any] = medians(args.runs)
    inside = {kind: parts["build"] + parts["trace_lower"] for kind, parts in found.items()}
    found["build_trace_lower"] = inside["layers_80"]
    found["depth_ratio"] = depth = inside["layers_80"] / inside["layers_8"]
    found["ratio_to_plain"] = inside["layers_80"] / inside["plain_80"]
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    missed = found["layers_80"]["total"] > TOTAL_LIMIT or inside["layers_80"] > BUILD_LIMIT or depth > DEPTH_LIMIT
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
