"""From process start to the lowered Llama-2 70B train step, FSDP over 512 simulated devices.

Run: `python benchmarks/cold_start.py [--runs 5]`. Each run is a fresh process. Between ours runs the same in plain JAX
(`plain_llama`): the same sizes, optimizer, precision (fp32 parameters, bf16 maths), sharding of parameters and
activations, scan over layers, attention and loss in blocks, without which no device could hold the scores or the
logits. `least` leaves precision, blocks and constraints out: the shortest step that has the shapes, though it could run
nowhere. Prints medians in seconds of wall and of processor time, and ratios of processor time, which a busy machine
blurs less. Exit code 1 where a limit of the project is missed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TOTAL_LIMIT, BUILD_LIMIT, DEPTH_LIMIT, WORK_RATIO_LIMIT, START_RATIO_LIMIT = 2.5, 0.6, 1.2, 1.15, 1.2

#: What every child ends with. Both clocks: of the machine since it booted, and of this process since it began.
TELL = """
import json
parts = {"import": (begun, imported), "build": (imported, built), "trace_lower": (built, ended)}
seconds = {name: [late - early for early, late in zip(*pair)] for name, pair in parts.items()}
print(json.dumps({**seconds, "work": [late - early for early, late in zip(imported, ended)], "ended": ended}))
"""

OURS = """
import time
now = lambda: (time.perf_counter(), time.process_time())
begun = now()
import jax, optax
from kanawa.composition import compose
from kanawa.composition.environment import environment
import kanawa_layers.recipes.llama, kanawa_runtime.train.trainer, kanawa_parallel.modifiers
imported = now()
composed = compose("llama2-70b", "cpu-512", (), ["model.stack.num_layers=LAYERS"])
program = composed.workload().programs(environment(composed, "abstract"))["train_step"]
built = now()
lowered = program.lower()
ended = now()
"""

PLAIN = """
import time
now = lambda: (time.perf_counter(), time.process_time())
begun = now()
import functools, gc, jax, optax, plain_llama as plain
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
imported = now()
shape = plain.Shape(layers=LAYERS, width=8192, heads=64, kv_heads=8, hidden=28672, vocab=32000, MORE)
mesh = AbstractMesh((512,), ("fsdp",), axis_types=(AxisType.Auto,))
def placed(x):
    largest = max(range(x.ndim), key=lambda i: x.shape[i] if x.shape[i] % 512 == 0 else 0, default=None)
    fits = largest is not None and x.shape[largest] % 512 == 0
    spec = PartitionSpec(*("fsdp" if fits and i == largest else None for i in range(x.ndim)))
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))
params = jax.eval_shape(functools.partial(plain.init, shape), jax.random.key(0))
opt = jax.eval_shape(plain.optimizer().init, params)
tokens = jax.ShapeDtypeStruct((1024, 4097), "int32", sharding=NamedSharding(mesh, PartitionSpec("fsdp")))
built = now()
gc.disable()  # As ours does while it traces.
step = jax.jit(functools.partial(plain.train_step, shape=shape), donate_argnums=(0, 1))
with jax.sharding.use_abstract_mesh(mesh):
    step.trace(*jax.tree.map(placed, (params, opt)), tokens).lower(lowering_platforms=("cpu",))
ended = now()
"""

SAME_WORK = "compute='bfloat16', batch_axis='fsdp', query_block=512, loss_block=512"
KINDS = {
    "layers_80": (80, OURS),
    "plain_80": (80, PLAIN.replace("MORE", SAME_WORK)),
    "layers_8": (8, OURS),
    "least_80": (80, PLAIN.replace(", MORE", "")),
}
Parts = dict[str, list[float]]


def one(layers: int, child: str) -> Parts:
    """Returns [wall, processor] seconds of each part of one fresh process; `start_to_lowered` from its very start."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parent)}
    # Python's own start counts for both sides. Its clock is the machine's: a child's readings go on from ours.
    started = time.perf_counter()
    command = [sys.executable, "-c", child.replace("LAYERS", str(layers)) + TELL]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    parts = json.loads(out.stdout.splitlines()[-1])
    wall, processor = parts.pop("ended")
    return {**parts, "start_to_lowered": [wall - started, processor]}


def measured(runs: int) -> dict[str, list[Parts]]:
    """Returns the parts of `runs` processes of each kind, taken in turns."""
    turns = [{kind: one(*how) for kind, how in KINDS.items()} for _ in range(runs)]
    return {kind: [turn[kind] for turn in turns] for kind in KINDS}


def ratio(first: list[Parts], second: list[Parts], part: str) -> float:
    """Returns the median over turns of one part's processor time, first over second."""
    return statistics.median(a[part][1] / b[part][1] for a, b in zip(first, second, strict=True))


def main() -> int:
    """Measures; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    for layers, child in KINDS.values():
        one(layers, child)
    turns = measured(args.runs)
    ours, plain = turns["layers_80"], turns["plain_80"]
    medians = {
        kind: {part: [statistics.median(p[part][clock] for p in parts) for clock in (0, 1)] for part in parts[0]}
        for kind, parts in turns.items()
    }
    ratios = {
        "work_to_plain": ratio(ours, plain, "work"),
        "start_to_lowered_to_plain": ratio(ours, plain, "start_to_lowered"),
        "work_to_least": ratio(ours, turns["least_80"], "work"),
        "start_to_lowered_to_least": ratio(ours, turns["least_80"], "start_to_lowered"),
        "depth": ratio(ours, turns["layers_8"], "work"),
    }
    limits = {
        "start_to_lowered": (medians["layers_80"]["start_to_lowered"][0], TOTAL_LIMIT),
        "work": (medians["layers_80"]["work"][0], BUILD_LIMIT),
        "work_to_plain": (ratios["work_to_plain"], WORK_RATIO_LIMIT),
        "start_to_lowered_to_plain": (ratios["start_to_lowered_to_plain"], START_RATIO_LIMIT),
        "depth": (ratios["depth"], DEPTH_LIMIT),
    }
    missed = [name for name, (value, limit) in limits.items() if value > limit]
    result: dict[str, Any] = {"runs": args.runs, "wall_and_processor_seconds": medians, "ratios": ratios}
    sys.stdout.write(json.dumps({**result, "missed": missed}, indent=2) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
