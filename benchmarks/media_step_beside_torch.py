"""The train step of ViT, Whisper and DiT beside the same model in PyTorch: time in fp32 and bf16, the median ratio.

Run: python benchmarks/media_step_beside_torch.py --torch PYTHON [--only vit] [--pairs 6] [--small]; PYTHON has torch,
transformers and diffusers. Both sides do forward, backward and AdamW without clipping on the same shapes, with as many
threads as the process may use cores (`taskset -c 1 …`: one). PyTorch's side is the quickest of its modes (eager,
torch.compile; in bf16 autocast and parameters in bf16), measured first. Whisper's spectrogram is part of our step and
not of PyTorch's.

Prints one JSON object a model and dtype; exit code 1 where our step takes longer.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import kanawa as kn
import numpy as np
from kanawa.composition.environment import environment
from kanawa.contracts import DataSource, ImageBatch, RowField, SpeechBatch
from kanawa.contracts.workload import PrecisionConfig
from kanawa_backends_cpu.process import prepare_process
from kanawa_backends_cpu.processor import cores
from kanawa_layers.recipes.vit import vit
from kanawa_layers.recipes.whisper import whisper
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.train.trainer import Trainer

LIMIT = 1.0
SHAPES: dict[str, dict[str, int]] = {
    "vit": {"layers": 12, "width": 768, "heads": 12, "image": 224, "patch": 16, "classes": 1000, "batch": 8},
    "whisper": {"layers": 4, "width": 384, "heads": 6, "length": 128, "batch": 4},
    "dit": {"layers": 12, "width": 384, "heads": 6, "image": 32, "batch": 8},
}
SMALL = {"layers": 2, "width": 64, "heads": 2, "batch": 2}
MODES = {
    "float32": ("float32", "float32+compile"),
    "bfloat16": ("autocast", "bfloat16", "autocast+compile", "bfloat16+compile"),
}


class RandomRows(DataSource):
    """Rows of random numbers in the fields of a record."""

    packed = False
    num_rows = None
    digest = "random"

    class Config(DataSource.Config):
        #: As the model takes them: fields by name.
        shapes: dict[str, tuple[tuple[int, ...], str]] = kn.REQUIRED

    @property
    def fields(self) -> dict[str, RowField | None]:
        """As configured."""
        return {
            name: RowField(shape, dtype, (None,) * len(shape)) for name, (shape, dtype) in self.config.shapes.items()
        }

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns random numbers, ones as weights, and lengths of the whole."""
        draw, row = np.random.default_rng(index), {}
        for name, (shape, dtype) in self.config.shapes.items():
            numbers = draw.integers(0, 200, shape) if "int" in dtype else 0.1 * draw.standard_normal(shape)
            row[name] = np.asarray(numbers).astype(dtype)
        row["loss_weights"] = np.ones_like(row["loss_weights"])
        if "audio" in row:
            row["audio_lengths"] = np.array(row["audio"].size, np.int32)
        return row


class RandomImages(RandomRows):
    """Images and labels."""

    batch = ImageBatch


class RandomSpeech(RandomRows):
    """Sound and what is said."""

    batch = SpeechBatch


def data_config(name: str, shape: dict[str, int]) -> RandomRows.Config:
    """Returns the source of a model's rows: images, latents, or 30 s of sound."""
    if name == "whisper":
        audio = {"audio": ((480_000,), "float32"), "audio_lengths": ((), "int32")}
        ids = (shape["length"] - 1,)
        return RandomSpeech.Config(shapes={**audio, "target_ids": (ids, "int32"), "loss_weights": (ids, "float32")})
    channels, dtype = (3, "uint8") if name == "vit" else (4, "float32")
    images = {"images": ((shape["image"], shape["image"], channels), dtype)}
    return RandomImages.Config(shapes={**images, "target_ids": ((), "int32"), "loss_weights": ((), "float32")})


def model_config(name: str, shape: dict[str, int]) -> Any:
    """Returns the model's config."""
    sizes = {"num_layers": shape["layers"], "input_dim": shape["width"], "num_heads": shape["heads"]}
    if name == "vit":
        cfg = vit(**sizes, patch_size=shape["patch"], image_size=shape["image"], num_classes=shape["classes"])
        stacks = [cfg.encoder.stack]
    elif name == "whisper":
        cfg = whisper(**sizes)
        stacks = [cfg.encoder.stack, cfg.decoder.stack]
    else:
        cfg = kn.component("models", "dit-tiny").func(**sizes, image_size=shape["image"])
        stacks = [cfg.denoiser.stack]
    for stack in stacks:
        # As experiments for this machine do: a loop copies each layer's slices.
        stack.set(scan=False)
    return cfg


def our_step(name: str, shape: dict[str, int], compute: str) -> tuple[Callable[[], None], int]:
    """Returns a function that runs one step, and the number of trained parameters."""
    learner = Learner.Config(schedule=Constant.Config(peak=3e-4), clip_norm=None)
    config = Trainer.Config(
        model=model_config(name, shape),
        data=data_config(name, shape),
        batch_size=shape["batch"],
        steps=1000,
        precision=PrecisionConfig(compute=compute),
        learner=learner,
    )
    composition = kn.compose(config)
    trainer, source = composition.config.build(), composition.config.data.build()
    programs = trainer.programs(environment(composition))
    step, state = programs["train_step"].lower().compile(), programs["init"].lower().compile()()
    rows = [source.row(index) for index in range(shape["batch"])]
    batch = source.batch(**{field: np.stack([row[field] for row in rows]) for field in rows[0]})
    held = {"state": state}

    def run() -> None:
        held["state"], report = step(held["state"], batch)
        report.values.block_until_ready()

    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    return run, count


def set_real_time(pid: int, is_real_time: bool) -> None:
    """Puts all threads of a process in the real-time class, or back: no other work then interrupts a step."""
    policy, priority = (os.SCHED_FIFO, 1) if is_real_time else (os.SCHED_OTHER, 0)
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setscheduler(int(thread), policy, os.sched_param(priority))


class Torch:
    """A process of PyTorch's side in one mode."""

    def __init__(self, python: str, shape: dict[str, Any], mode: str) -> None:
        """Starts it; `ready` is its first line."""
        command = [python, str(Path(__file__).with_name("torch_media.py"))]
        command.append(json.dumps(shape | {"mode": mode, "threads": cores()}))
        self.mode = mode
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        self.ready: dict[str, Any] = json.loads(line) if line else {}

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._child.pid

    def step(self) -> tuple[float, float]:
        """Returns the wall and processor seconds of one step."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write("step\n")
        self._child.stdin.flush()
        wall, busy, _ = map(float, self._child.stdout.readline().split())
        return wall, busy

    def close(self) -> None:
        """Ends it."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()


def quickest(python: str, shape: dict[str, Any], modes: tuple[str, ...]) -> tuple[Torch, dict[str, float]]:
    """Returns the process of the quickest mode, by processor time, the median of three steps, and each mode's."""
    seconds, sides = {}, {}
    for mode in modes:
        side = Torch(python, shape, mode)
        if side.ready:
            seconds[mode] = statistics.median(side.step()[1] for _ in range(3))
            sides[mode] = side
    if not sides:
        sys.exit(f"{python} can't run torch_media.py; pip install torch transformers diffusers there")
    best = min(seconds, key=seconds.__getitem__)
    for mode, side in sides.items():
        if mode != best:
            side.close()
    return sides[best], seconds


def measure(
    name: str, shape: dict[str, int], compute: str, python: str, pairs: int, modes: tuple[str, ...], *, real_time: bool
) -> Any:
    """Compares both steps, which take turns."""
    run, count = our_step(name, shape, compute)
    run()
    other, seconds = quickest(python, {**shape, "model": name}, modes)
    times: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])

    def ours() -> tuple[float, float]:
        begin, busy = time.perf_counter(), time.process_time()
        run()
        return time.perf_counter() - begin, time.process_time() - busy

    for index in range(pairs):
        for which in (0, 1) if index % 2 == 0 else (1, 0):
            pid = (os.getpid(), other.pid)[which]
            if real_time:
                set_real_time(pid, True)
            times[which].append((ours, other.step)[which]())
            if real_time:
                set_real_time(pid, False)
    version, mode = other.ready, other.mode
    other.close()
    walls = sorted(a[0] / b[0] for a, b in zip(*times, strict=True))
    busy = sorted(a[1] / b[1] for a, b in zip(*times, strict=True))
    reach = 0.98 * pairs**0.5
    low, high = max(0, int(pairs / 2 - reach)), min(pairs - 1, int(pairs / 2 + reach))
    return {
        "model": name,
        "compute": compute,
        "ratio": statistics.median(walls),
        "interval": [walls[low], walls[high]],
        "processor_ratio": statistics.median(busy),
        "processor_interval": [busy[low], busy[high]],
        "pairs": pairs,
        "ours_seconds": statistics.median(one[0] for one in times[0]),
        "torch_seconds": statistics.median(one[0] for one in times[1]),
        "ours_processor_seconds": statistics.median(one[1] for one in times[0]),
        "torch_processor_seconds": statistics.median(one[1] for one in times[1]),
        "parameters": [count, version["parameters"]],
        "torch": version["torch"],
        "torch_mode": mode,
        "torch_modes": seconds,
        "jax": jax.__version__,
        "load": os.getloadavg()[0],
    }


def main() -> int:
    """Measures each model and dtype; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", metavar="PYTHON", required=True)
    parser.add_argument("--only", choices=SHAPES)
    parser.add_argument("--compute", choices=MODES)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--mode", action="append", help="PyTorch's modes to choose from; all by default")
    parser.add_argument("--real-time", action="store_true", help="for a machine that other work shares; needs root")
    parser.add_argument("--small", action="store_true", help="models that run in seconds, to try the script")
    args = parser.parse_args()
    # As every command does.
    prepare_process("train")
    missed = False
    for name in [args.only] if args.only else SHAPES:
        shape = SHAPES[name] | (SMALL if args.small else {}) | ({"batch": args.batch} if args.batch else {})
        for compute in [args.compute] if args.compute else MODES:
            modes = tuple(mode for mode in MODES[compute] if not args.mode or mode in args.mode)
            found = measure(name, shape, compute, args.torch, args.pairs, modes, real_time=args.real_time)
            missed |= found["ratio"] > LIMIT
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
