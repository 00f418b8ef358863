"""The framework's train step and decode loop against hand-written JAX: time, FLOPs, temporaries, host time.

Run: `nox -s benchmarks -- step_overhead` or `python benchmarks/step_overhead.py [--pairs 20] [--small]`. With
`--torch PYTHON`, the Python of an environment with torch and transformers, their step is measured too.
Prints one JSON object; exit code 1 where a limit of the project is missed.
"""

import argparse
import dataclasses
import functools
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import plain_llama as plain
from kanawa.arrays.tree import flatten_paths
from kanawa.composition.environment import environment
from kanawa.contracts import Batch
from kanawa.contracts.workload import PrecisionConfig
from kanawa_backends_cpu.process import keep_freed_memory
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.data.loader import GrainLoader
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import WarmupCosine
from kanawa_runtime.serve.generate import Generator, LoopState, Sampling
from kanawa_runtime.train.trainer import Trainer, TrainState
from paired import compare

STEP_LIMIT, DECODE_LIMIT, PROGRAM_LIMIT, HOST_LIMIT_MS = 0.65, 1.02, 0.01, 1.0


def config(shape: plain.Shape, batch: int, length: int) -> Trainer.Config:
    """Returns the trainer whose model, optimizer and schedule are those of plain_llama."""
    return Trainer.Config(
        model=llama(
            num_layers=shape.layers,
            input_dim=shape.width,
            num_heads=shape.heads,
            num_kv_heads=shape.kv_heads,
            hidden_dim=shape.hidden,
            vocab_size=shape.vocab,
        ),
        data=RandomTokens.Config(sequence_length=length, vocab_size=shape.vocab),
        batch_size=batch,
        steps=1000,
        precision=PrecisionConfig(compute=shape.compute),
        learner=Learner.Config(
            schedule=WarmupCosine.Config(peak=3e-4, warmup_steps=100, decay_steps=1000, final_fraction=0.1)
        ),
    )


def from_plain(params: plain.Tree) -> dict[str, Any]:
    """Returns hand-written parameters in the framework's tree."""
    p = params["layers"]
    weight = lambda name: {"weight": p[name]}  # noqa: E731
    attention = {"query": weight("q"), "key": weight("k"), "value": weight("v"), "output": weight("o")}
    layer = {
        "attention": attention,
        "feed_forward": {name: weight(name) for name in ("gate", "up", "down")},
        "attention_norm": {"scale": p["norm1"]},
        "feed_forward_norm": {"scale": p["norm2"]},
    }
    return {
        "embedding": {"weight": params["embedding"]},
        "stack": {"layer": layer},
        "norm": {"scale": params["norm"]},
        "head": {"kernel": params["head"]},
    }


def cost(compiled: jax.stages.Compiled) -> dict[str, float]:
    """Returns the compiler's FLOPs and temporary bytes."""
    analysis = compiled.cost_analysis()
    return {"flops": analysis["flops"], "temporary_bytes": compiled.memory_analysis().temp_size_in_bytes}


def train(shape: plain.Shape, batch: int, length: int, pairs: int, torch: str | None = None) -> dict[str, Any]:
    """Compares the two train steps from the same parameters on the same tokens."""
    composition = kn.compose(config(shape, batch, length))
    trainer, where = composition.config.build(), environment(composition)
    params = plain.init(shape, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (batch, length + 1), 0, shape.vocab)
    step = jax.jit(functools.partial(plain.train_step, shape=shape), donate_argnums=(0, 1))
    opt = plain.optimizer().init(params)
    plain_step = step.lower(params, opt, tokens).compile()

    ours = trainer.programs(where)["train_step"].lower().compile()
    mine = jax.tree.map(jnp.copy, from_plain(params))
    flat = flatten_paths(mine)
    state = TrainState(jnp.zeros((), jnp.int32), mine, {}, trainer.rule.init(flat))
    rows = jax.tree.map(np.asarray, Batch.of_tokens(tokens))
    held: dict[str, Any] = {"ours": state, "plain": (params, opt)}

    def run_ours() -> None:
        held["ours"], held["report"] = ours(held["ours"], rows)
        held["report"].values.block_until_ready()

    def run_plain() -> None:
        *rest, held["loss"] = plain_step(*held["plain"], tokens)
        held["plain"] = tuple(rest)
        held["loss"].block_until_ready()

    ratio = compare(run_ours, run_plain, pairs)
    mine_cost, plain_cost = cost(ours), cost(plain_step)
    return {
        "loss_ours": held["report"].read()["loss"],
        "loss_plain": float(held["loss"]),
        "ratio": ratio.median,
        "interval": [ratio.low, ratio.high],
        "processor_ratio": ratio.processor,
        "pairs": ratio.pairs,
        "ours_seconds": ratio.first_seconds,
        "plain_seconds": ratio.second_seconds,
        # The compiler counts no FLOPs in a library's call.
        "temporary_bytes": mine_cost["temporary_bytes"] / plain_cost["temporary_bytes"],
        **({} if torch is None else against_torch(run_ours, shape, batch, length, pairs, torch)),
    }


def against_torch(
    run_ours: Any, shape: plain.Shape, batch: int, length: int, pairs: int, python: str
) -> dict[str, Any]:
    """Returns our step's time over that of transformers, taking turns with a process of its own."""
    given = json.dumps(dataclasses.asdict(shape) | {"batch": batch, "length": length})
    command = [python, str(Path(__file__).with_name("torch_llama.py")), given]
    try:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    except OSError as failure:
        return {"torch": f"not measured: {failure}"}
    with child:
        ready = child.stdout.readline()
        if not ready:
            return {"torch": f"not measured: {python} can't run torch_llama.py; pip install torch transformers there"}

        def run_torch() -> None:
            child.stdin.write("step\n")
            child.stdin.flush()
            child.stdout.readline()

        ratio = compare(run_ours, run_torch, pairs)
        child.stdin.close()
    return {
        "torch": json.loads(ready),
        "ratio_to_torch": ratio.median,
        "interval_to_torch": [ratio.low, ratio.high],
        "torch_seconds": ratio.second_seconds,
    }


def decode(shape: plain.Shape, batch: int, count: int, prompt: int, pairs: int) -> dict[str, Any]:
    """Compares decoding `count` tokens after a prompt of `prompt` in one compiled loop."""
    model = config(shape, batch, 8).model.build()
    params = plain.init(shape, jax.random.key(0))
    total = prompt + count
    first = jnp.arange(batch, dtype=jnp.int32)
    layers = tuple(jax.tree.map(lambda x, i=i: x[i], params["layers"]) for i in range(shape.layers))
    apart = {**params, "layers": layers}
    kv = lambda: jnp.zeros((batch, total, shape.kv_heads, shape.head_dim))  # noqa: E731
    loop = jax.jit(functools.partial(plain.decode, count=count, shape=shape), donate_argnums=1)
    start = jnp.asarray(prompt, jnp.int32)
    held: dict[str, Any] = {"plain": tuple((kv(), kv()) for _ in range(shape.layers))}

    generator = Generator(model, from_plain(params))
    greedy = Sampling(temperature=0.0)
    uniforms = jnp.zeros((batch, count + 1))
    ours = jax.jit(functools.partial(generator.decode_loop, sampling=greedy), donate_argnums=2)
    held["ours"] = generator.new_caches(batch, total)

    def run_ours() -> None:
        ids, logprobs = jnp.zeros((batch, count + 1), jnp.int32), jnp.zeros((batch, count + 1))
        begin = LoopState(jnp.ones((), jnp.int32), first + 0, jnp.zeros(batch, bool), ids, logprobs, held["ours"])
        ended = ours(start, uniforms, begin, generator.params)
        held["ours"], held["ids_ours"] = ended.caches, ended.ids[:, 1:]
        held["ids_ours"].block_until_ready()

    def run_plain() -> None:
        held["ids_plain"], held["plain"] = loop(apart, held["plain"], first, start)
        held["ids_plain"].block_until_ready()

    ratio = compare(run_ours, run_plain, pairs)
    return {
        "tokens_equal": bool(jnp.array_equal(held["ids_ours"], held["ids_plain"])),
        "ratio": ratio.median,
        "interval": [ratio.low, ratio.high],
        "processor_ratio": ratio.processor,
        "pairs": ratio.pairs,
        "ours_seconds_a_token": ratio.first_seconds / count,
        "plain_seconds_a_token": ratio.second_seconds / count,
    }


def host(pairs: int) -> dict[str, Any]:
    """Measures the loop's host time beyond the compiled call, on a model whose step takes a few milliseconds."""
    from kanawa_runtime.train.batches import global_batch, local_rows

    # As every command does: both sides run in a process whose memory is kept.
    keep_freed_memory()
    shape = plain.Shape(layers=2, width=64, heads=2, kv_heads=2, hidden=128, vocab=256)
    composition = kn.compose(config(shape, 4, 64))
    trainer = composition.config.build()
    programs = trainer.programs(environment(composition))
    compiled = programs["train_step"].lower().compile()
    abstract = programs["train_step"].abstract_args[1]
    source, rows = trainer.config.data.build(), local_rows(abstract)
    local = GrainLoader.Config().build(source=source, global_batch=4).batch(0)
    state = programs["init"].lower().compile()()
    call, rest = [], []
    for _ in range(max(200, pairs)):
        started = time.perf_counter()
        batch = global_batch(local, abstract, rows)
        placed = time.perf_counter()
        state, report = compiled(state, batch)
        report.values.block_until_ready()
        called = time.perf_counter()
        report.read()
        float(np.sum(local.loss_weights))
        source.target_bytes(local.target_ids, local.loss_weights)
        ended = time.perf_counter()
        call.append(called - placed)
        rest.append(ended - called + placed - started)
    return {"step_ms": 1e3 * float(np.median(call)), "host_ms": 1e3 * float(np.median(rest))}


def main() -> int:
    """Runs the three comparisons; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--small", action="store_true", help="a model that runs in seconds, to try the script")
    parser.add_argument("--only", choices=("train", "train_bfloat16", "decode", "host"))
    parser.add_argument("--torch", metavar="PYTHON", help="the Python of an environment with torch and transformers")
    parser.add_argument("--out", type=Path, help="file to write the JSON to")
    args = parser.parse_args()
    # As every command does: both sides run in a process whose memory is kept.
    keep_freed_memory()
    shape = plain.Shape(layers=2, width=128, heads=4, kv_heads=2, hidden=256) if args.small else plain.Shape()
    low = dataclasses.replace(shape, compute="bfloat16")
    length = 128 if args.small else 512
    found: dict[str, Any] = {
        "jax": jax.__version__,
        "kanawa": kn.__version__,
        "python": platform.python_version(),
        "device": f"{jax.devices()[0].device_kind}",
    }
    parts = {
        "train": lambda: train(shape, 8, length, args.pairs, args.torch),
        "train_bfloat16": lambda: train(low, 8, length, args.pairs, args.torch),
        "decode": lambda: decode(shape, 8, 64, 64, args.pairs),
        "host": lambda: host(args.pairs),
    }
    for name, part in parts.items():
        if args.only in (None, name):
            found[name] = part()
    found["missed"] = missed(found)
    text = json.dumps(found, indent=2)
    sys.stdout.write(text + "\n")
    if args.out:
        args.out.write_text(text + "\n")
    return 1 if found["missed"] else 0


def missed(found: dict[str, Any]) -> list[str]:
    """Returns which of the project's limits the figures miss."""
    limits = []
    for name, tolerance in (("train", 1e-3), ("train_bfloat16", 3e-2)):
        t = found.get(name, {})
        limits += [f"{name} ratio"] if t and t["ratio"] > STEP_LIMIT else []
        limits += [f"{name} temporary_bytes"] if t and t["temporary_bytes"] > 1 + PROGRAM_LIMIT else []
        limits += [f"{name} loss"] if t and abs(t["loss_ours"] - t["loss_plain"]) > tolerance else []
    if "decode" in found:
        limits += ["decode ratio"] if found["decode"]["ratio"] > DECODE_LIMIT else []
        limits += [] if found["decode"]["tokens_equal"] else ["decoded tokens"]
    if "host" in found:
        limits += ["host time"] if found["host"]["host_ms"] > HOST_LIMIT_MS else []
    return limits


if __name__ == "__main__":
    sys.exit(main())
