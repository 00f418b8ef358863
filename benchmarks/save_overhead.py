"""What an asynchronous save holds the training loop for, against the steps between two saves.

Run: `nox -s benchmarks -- save_overhead` or `python benchmarks/save_overhead.py [--kind orbax sharded] [--small]`. A
real run of `kanawa train` in this process, on random tokens, without evaluation. Prints one JSON object; exit code 1
where a save delays training by more than a twentieth of the interval between saves that `checkpoints` has by default.

All times are of one run; a step's time is that of the steps while nothing is written. `held` is what training stands
still for: the call itself, and the digests that run on the state's devices before the next step may overwrite it.
`delayed` is by how much later all steps of an interval were done, so also what the thread that writes takes of
processors that training needs on a CPU; an accelerator's host has its own for that.
"""

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.composition.experiment import compose
from kanawa_backends_cpu.process import keep_freed_memory
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.checkpoint.digest import start_digest
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.policies import CheckpointPolicy, EvaluationPolicy
from kanawa_runtime.train.screen import Screen
from kanawa_runtime.train.trainer import Trainer

LIMIT = 0.05
#: Steps before the first that is counted: what is compiled, imported and mapped once belongs to the start.
_WARM_SAVES = 2
_NEVER = 10**9


def config(kind: str, every: int, *, small: bool) -> Trainer.Config:
    """Returns a Llama with AdamW, as many bytes of state as the quickstart has or, by default, half a gigabyte."""
    layers, width, heads, hidden, vocab = (2, 128, 4, 256, 2048) if small else (8, 512, 8, 1536, 16384)
    return Trainer.Config(
        model=llama(
            num_layers=layers, input_dim=width, num_heads=heads, num_kv_heads=heads, hidden_dim=hidden, vocab_size=vocab
        ),
        data=RandomTokens.Config(sequence_length=128, vocab_size=vocab),
        batch_size=4,
        steps=10_000,
        learner=Learner.Config(schedule=Constant.Config(peak=1e-4)),
        evaluation=EvaluationPolicy(every_steps=_NEVER, final_batches=1),
        checkpoints=CheckpointPolicy(every_steps=every, keep_last=1),
        checkpointer=kn.component("checkpointers", kind).Config(),
    )


def trained(run: Path, kind: str, every: int, saves: int, *, small: bool) -> tuple[list[dict[str, Any]], list[Any]]:
    """Trains until so many saves have been begun and as many steps follow; returns events, and the state's leaves."""
    steps = every * (saves + _WARM_SAVES + 1) - 1
    loop = Loop(compose(config(kind, every, small=small)), run, steps=steps, screen=Screen())
    state = loop.prepared.programs["train_step"].abstract_args[0]
    loop.execute()
    return read_events(run / "events.jsonl"), jax.tree.leaves(state)


def account(events: list[dict[str, Any]], every: int, state: list[Any]) -> dict[str, Any]:
    """Returns what saves cost, in seconds and as shares of the interval between two of them."""
    ended = {event["step"]: event["clock"] for event in events if event["event"] == "step"}
    saves = [event for event in events if event["event"] == "checkpoint_committed"][_WARM_SAVES:-1]
    gap = {step: ended[step] - ended[step - 1] for step in ended if step - 1 in ended}
    written = {save["step"]: save["clock"] for save in saves}
    # Those between a save and its commit share the processors with it; the others are undisturbed.
    free = [
        gap[step]
        for saved, until in written.items()
        for step in range(saved + 2, saved + every)
        if ended[step - 1] > until and step in gap
    ]
    step = statistics.median(free)
    delayed = statistics.median(sum(gap[s] - step for s in range(saved + 1, saved + every)) for saved in written)
    blocking = statistics.median(save["blocking_seconds"] for save in saves)
    held, steps = blocking + digest_seconds(state), CheckpointPolicy().every_steps
    return {
        "state_bytes": sum(leaf.size * leaf.dtype.itemsize for leaf in state),
        "saves": len(written),
        "interval_steps": steps,
        "step_seconds": step,
        "undisturbed_steps": len(free),
        "blocking_seconds": blocking,
        "held_seconds": held,
        "delayed_seconds": delayed,
        "write_seconds": statistics.median(save["seconds"] for save in saves),
        "held_share_of_a_step": held / step,
        "held_share_of_interval": held / (steps * step),
        "delayed_share_of_interval": delayed / (steps * step),
    }


def digest_seconds(state: list[Any]) -> float:
    """Returns the median time of the digests of arrays of these shapes, one after the other as a save starts them."""
    arrays = [jnp.ones(leaf.shape, leaf.dtype) for leaf in state]
    times = []
    for _ in range(4):
        jax.block_until_ready(arrays)
        began = time.perf_counter()
        jax.block_until_ready([start_digest(array) for array in arrays])
        times.append(time.perf_counter() - began)
    # The first one compiles.
    return statistics.median(times[1:])


def each_step(events: list[dict[str, Any]]) -> float:
    """Returns the median seconds a step of a run that saves each."""
    clocks = [event["clock"] for event in events if event["event"] == "step"]
    return statistics.median(b - a for a, b in zip(clocks[3:], clocks[4:], strict=False))


def main() -> int:
    """Prints what was measured; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", nargs="+", default=["orbax", "sharded"])
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--every", type=int, default=20, help="steps between saves; enough for a save to be written")
    parser.add_argument("--small", action="store_true", help="a model of 4 MB, to try the script")
    parser.add_argument("--each-step", action="store_true", help="also a run that saves every step")
    options = parser.parse_args()
    keep_freed_memory()
    record: dict[str, Any] = {
        "limit": LIMIT,
        "versions": {"jax": jax.__version__, "kanawa": kn.__version__, "python": platform.python_version()},
    }
    shares = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.kind:
            run = Path(folder, kind)
            events, state = trained(run, kind, options.every, options.saves, small=options.small)
            record[kind] = account(events, options.every, state)
            shares.append(record[kind]["delayed_share_of_interval"])
            if options.each_step:
                run = Path(folder, f"{kind}-each")
                seconds = each_step(trained(run, kind, 1, 8, small=options.small)[0])
                record[kind]["step_seconds_saving_each"] = seconds
                record[kind]["step_ratio_saving_each"] = seconds / record[kind]["step_seconds"]
    sys.stdout.write(json.dumps(record, indent=1) + "\n")
    return int(max(shares) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
