"""Training a Llama of about 1.2 billion parameters in bf16 at 4,096 tokens on one GPU, by our own step: its MFU.

Run on an NVIDIA GPU: `python benchmarks/gpu_train.py [--batch 8] [--out FILE]`. Elsewhere it ends
with exit code 2; `--tiny` runs a toy of the same step there, to try the script. On an H200 at least 55 % is wanted, and
exit code 1 says that it was missed. Never run on hardware so far.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from kanawa.contracts import Environment, PrecisionConfig
from kanawa.plugins.devices import device_spec_of_kind
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.data.loader import GrainLoader
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import WarmupCosine
from kanawa_runtime.train.batches import global_batch, local_rows
from kanawa_runtime.train.program_record import program_record
from kanawa_runtime.train.trainer import Trainer
from on_gpu import gpu_or_exit, report

WANTED, WANTED_ON = 0.55, "h200"
_WARM_UP = 3


def config(tiny: bool, batch: int, length: int, layers: int) -> Trainer.Config:
    """Returns the trainer: Llama 3.2's 1B shape, untied, with the vocabulary of Llama 2."""
    sizes = {"num_layers": layers, "input_dim": 2048, "num_heads": 16, "num_kv_heads": 8, "hidden_dim": 8192}
    vocab = 32_000
    if tiny:
        sizes = {"num_layers": 2, "input_dim": 64, "num_heads": 4, "num_kv_heads": 2, "hidden_dim": 128}
        vocab = 256
    return Trainer.Config(
        model=llama(**sizes, vocab_size=vocab),
        data=RandomTokens.Config(sequence_length=length, vocab_size=vocab),
        batch_size=batch,
        steps=1000,
        precision=PrecisionConfig(compute="bfloat16"),
        learner=Learner.Config(
            schedule=WarmupCosine.Config(peak=3e-4, warmup_steps=100, decay_steps=1000, final_fraction=0.1)
        ),
    )


def measured(cfg: Trainer.Config, steps: int) -> dict[str, Any]:
    """Returns seconds a step (median), model FLOPs a step, the loss and the kernels of a trainer."""
    trainer = cfg.build()
    programs = trainer.programs(Environment())
    lowered = programs["train_step"].lower()
    compiled, abstract = lowered.compile(), programs["train_step"].abstract_args[1]
    state = programs["init"].lower().compile()()
    loader = GrainLoader.Config().build(source=cfg.data.build(), global_batch=cfg.batch_size)
    # One batch again and again: reading data isn't what is measured.
    batch = global_batch(loader.batch(0), abstract, local_rows(abstract))
    taken = []
    for _ in range(steps + _WARM_UP):
        started = time.perf_counter()
        state, told = compiled(state, batch)
        jax.block_until_ready(told.values)
        taken.append(time.perf_counter() - started)
    record = program_record(trainer, compiled, "bfloat16")
    return {
        "seconds_a_step": float(np.median(taken[_WARM_UP:])),
        "loss": told.read()["loss"],
        "kernels": sorted({choice.kernel for choice in lowered.kernels}),
        **{name: record[name] for name in ("parameters", "model_flops_per_step", "peak_flops_per_chip")},
        "memory_per_device_bytes": record["memory_per_device_bytes"],
    }


def main() -> int:
    """Measures and reports; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a toy of the same step, without a GPU")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, help="file to write the JSON to")
    args = parser.parse_args()
    if args.tiny:
        result = measured(config(tiny=True, batch=2, length=64, layers=2), steps=2)
    else:
        gpu_or_exit("gpu_train.py", "`--tiny` tries the script without one.")
        result = measured(config(tiny=False, batch=args.batch, length=args.length, layers=args.layers), args.steps)
    peak = result["peak_flops_per_chip"]
    result["mfu"] = None if peak is None else result["model_flops_per_step"] / result["seconds_a_step"] / peak
    device = device_spec_of_kind(jax.devices()[0].device_kind)
    judged = not args.tiny and device is not None and device.name == WANTED_ON
    report({**result, "wanted_mfu": WANTED if judged else None}, args.out)
    return int(judged and (result["mfu"] or 0.0) < WANTED)


if __name__ == "__main__":
    sys.exit(main())
