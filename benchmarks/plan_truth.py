"""What `kanawa plan` predicts against what a step takes, here: seconds and memory, for a few shapes.

Run: `nox -s benchmarks -- plan_truth` or `python benchmarks/plan_truth.py [--runs 5]`. Prints one JSON object.
The processor's figures are measured by a probe before and after each shape, and their mean is used: on a shared
machine they move. Nothing is fitted to the steps that are predicted.
"""

import argparse
import dataclasses
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from kanawa.composition.experiment import compose
from kanawa.composition.target import parse_target
from kanawa.contracts import PrecisionConfig
from kanawa.plugins import DeviceSpec
from kanawa_layers.recipes.llama import llama
from kanawa_parallel.plan.compiled.compilation import compile_program
from kanawa_parallel.plan.compiled.count import compiled_report
from kanawa_parallel.plan.report.assemble import installed_versions
from kanawa_parallel.remat.policies import FullRemat
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.train.trainer import Trainer

#: (layers, width, hidden, heads, rows, length, remat): what binds is matmuls, attention, or the update.
SHAPES = {
    "matmuls": (4, 512, 1408, 8, 4, 256, False),
    "recomputed": (4, 512, 1408, 8, 4, 256, True),
    "attention": (2, 256, 704, 4, 1, 1024, False),
    "update": (4, 512, 1408, 8, 1, 64, False),
}
VOCABULARY = 2048


def config(layers: int, width: int, hidden: int, heads: int, rows: int, length: int, remat: bool) -> Trainer.Config:
    """Returns the trainer of one shape."""
    model = llama(
        num_layers=layers, input_dim=width, hidden_dim=hidden, num_heads=heads, num_kv_heads=heads,
        vocab_size=VOCABULARY,
    )  # fmt: skip
    if remat:
        model.stack.set(remat=FullRemat.Config())
    return Trainer.Config(
        model=model,
        data=RandomTokens.Config(sequence_length=length, vocab_size=VOCABULARY),
        batch_size=rows,
        steps=10,
        precision=PrecisionConfig(compute="float32"),
        learner=Learner.Config(schedule=Constant.Config(peak=1e-4)),
    )


def truth(name: str, runs: int) -> dict[str, Any]:
    """Returns prediction, measurement and error of one shape."""
    composition = compose(config(*SHAPES[name]), "cpu")
    compilation = compile_program(composition, "train_step")
    before = measured_device(composition.target.device)
    seconds = step_seconds(compilation, runs)
    after = measured_device(composition.target.device)
    device = dataclasses.replace(
        before,
        peak_flops={d: (before.peak_flops[d] + after.peak_flops[d]) / 2 for d in before.peak_flops},
        memory_bandwidth=(before.memory_bandwidth + after.memory_bandwidth) / 2,
    )
    report = compiled_report(compilation, device)
    return {
        "predicted_seconds": report.step_seconds,
        "measured_seconds": seconds,
        "error": report.step_seconds / seconds - 1,
        "predicted_by": report.step_seconds_by,
        "flops": report.flops_per_step,
        "gflops_per_second": device.peak_flops["float32"] / 1e9,
        "gigabytes_per_second": device.memory_bandwidth / 1e9,
        "temporaries_error": report.temporaries_error,
    }


def measured_device(spec: DeviceSpec) -> DeviceSpec:
    """Returns `spec` with this machine's FLOP/s of a matmul and bytes a second of a sum."""
    x = jnp.ones((32 * 2**20,), jnp.float32)  # larger than any cache
    bandwidth = 2.0 * x.nbytes / _median_seconds(jax.jit(lambda a: a + 1.0), x)
    return dataclasses.replace(
        spec,
        peak_flops={dtype: _matmul_flops(dtype) for dtype in ("float32", "bfloat16")},
        memory_bandwidth=bandwidth,
        link_bandwidth=bandwidth,
    )


def _matmul_flops(dtype: str, width: int = 1024) -> float:
    return 2.0 * width**3 / _median_seconds(jax.jit(lambda a: a @ a), jnp.ones((width, width), dtype))


def _median_seconds(function: Callable[..., Any], x: jax.Array, runs: int = 7) -> float:
    """Returns the median time of a run, after one that compiles."""
    jax.block_until_ready(function(x))
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        jax.block_until_ready(function(x))
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def step_seconds(compilation: Any, runs: int) -> float:
    """Returns the median time of the compiled step itself, on zeros."""
    state, batch = compilation.program.abstract_args
    zeros = lambda leaf: jnp.zeros(leaf.shape, leaf.dtype)  # noqa: E731
    state, batch = jax.tree.map(zeros, state), jax.tree.map(zeros, batch)
    state, _ = jax.block_until_ready(compilation.executable(state, batch))
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        state, _ = jax.block_until_ready(compilation.executable(state, batch))
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> int:
    """Measures every shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=sorted(SHAPES))
    args = parser.parse_args()
    names = [args.only] if args.only else list(SHAPES)
    versions = installed_versions(parse_target("cpu").device)
    result = {"machine": platform.processor() or platform.machine(), "versions": versions}
    result["shapes"] = {name: truth(name, args.runs) for name in names}
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
