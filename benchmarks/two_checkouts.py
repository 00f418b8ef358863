"""Two checkouts of this repository against each other: train step, decoding, serving and the start of training.

Run: `python benchmarks/two_checkouts.py OLD NEW [--pairs 12] [--only train,serve]`. Each checkout needs its own
environment in `.venv-dev` (`nox -s dev`). Each side of a case is a process that has compiled before anything is timed;
the two take turns, so that what else the machine does meets both alike. Prints the ratio NEW / OLD of each case's
seconds, of wall and of processor time: the median over pairs and its 95 % interval.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paired import compare

#: Runs a case of a checkout's own step_overhead once for each line it is sent.
_STEP = """
import json, os, sys, time
sys.path.insert(0, "benchmarks")
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
import step_overhead

def by_line(first, second, pairs):
    first()
    answers.write("ready\\n")
    for line in sys.stdin:
        first()
        answers.write("done\\n")
    os._exit(0)

step_overhead.compare = by_line
step_overhead.keep_freed_memory()
shape = step_overhead.plain.Shape()
"""
_CASES = {
    "train": "step_overhead.train(shape, 8, 512, 1)",
    "train_bfloat16": 'step_overhead.train(step_overhead.dataclasses.replace(shape, compute="bfloat16"), 8, 512, 1)',
    "decode": "step_overhead.decode(shape, 8, 64, 64, 1)",
}
_PROMPTS, _PROMPT, _NEW = 16, 64, 64


def kanawa(checkout: Path) -> list[str]:
    """Returns the command of a checkout's environment."""
    return [str(checkout / ".venv-dev" / "bin" / "kanawa")]


class Side:
    """A process of one checkout, which answers a line with a line."""

    def __init__(self, checkout: Path, *arguments: str) -> None:
        command = [str(checkout / ".venv-dev" / "bin" / "python"), *arguments]
        self._process = subprocess.Popen(
            command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if not self._process.stdout.readline():
            message = f"{' '.join(arguments)[:60]} of {checkout} did not start"
            raise RuntimeError(message)

    def ask(self, line: str) -> str:
        """Returns the answer to a line."""
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def processor_seconds(self) -> float:
        """Returns the processor time of the process so far, over all its threads."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait(60)


def timed(new: Side, old: Side, asked: str, pairs: int) -> dict[str, Any]:
    """Returns the ratios of two sides that take turns in answering."""
    before = new.processor_seconds(), old.processor_seconds()
    ratio = compare(lambda: new.ask(asked), lambda: old.ask(asked), pairs)
    work = [side.processor_seconds() - start for side, start in zip((new, old), before, strict=True)]
    return {"ratio": ratio.median, "interval": [ratio.low, ratio.high], "processor_ratio": work[0] / work[1]} | {
        "new_seconds": ratio.first_seconds,
        "old_seconds": ratio.second_seconds,
        "pairs": ratio.pairs,
    }


def step(case: str, new: Path, old: Path, pairs: int) -> dict[str, Any]:
    """Returns the ratios of a case of step_overhead."""
    sides = [Side(checkout, "-c", _STEP + _CASES[case]) for checkout in (new, old)]
    found = timed(*sides, "go", pairs)
    for side in sides:
        side.close()
    return found


def serve(dtype: str, new: Path, old: Path, pairs: int, folder: Path) -> dict[str, Any]:
    """Returns the ratios of an engine that answers requests greedily, and whether both give the same tokens."""
    sides = [Side(checkout, "benchmarks/serving_side.py", "kanawa", str(folder), dtype) for checkout in (new, old)]
    rng = random.Random(0)
    prompts = [[rng.randrange(3, 2000) for _ in range(_PROMPT)] for _ in range(_PROMPTS)]
    asked = json.dumps({"prompts": prompts, "lengths": [_NEW] * _PROMPTS})
    tokens = [json.loads(side.ask(asked))["tokens"] for side in sides]
    found = timed(*sides, asked, pairs) | {"tokens_equal": tokens[0] == tokens[1]}
    for side in sides:
        side.close()
    return found


def start(new: Path, old: Path, pairs: int, folder: Path) -> dict[str, Any]:
    """Returns the ratios of a training command of one step whose programs are in the compile cache as far as can be."""
    small = ("--steps", "1", "--set", "batch_size=2", "--set", "sample_prompt=None")
    count = 0

    def train(checkout: Path) -> Callable[[], None]:
        def run() -> None:
            nonlocal count
            count += 1
            command = [*kanawa(checkout), "train", "quickstart", *small, "--run", str(folder / f"started-{count}")]
            subprocess.run(command, check=True, capture_output=True)

        return run

    ratio = compare(train(new), train(old), pairs)
    return {"ratio": ratio.median, "interval": [ratio.low, ratio.high], "pairs": ratio.pairs} | {
        "new_seconds": ratio.first_seconds,
        "old_seconds": ratio.second_seconds,
    }


def main() -> None:
    """Prints a JSON object a case, as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--only", default="train,train_bfloat16,decode,serve,serve_bfloat16,start")
    parser.add_argument("--folder", type=Path, default=Path("/tmp") / f"two-checkouts-{os.getpid()}")
    args = parser.parse_args()
    old, new, folder = args.old.resolve(), args.new.resolve(), args.folder
    folder.mkdir(exist_ok=True)
    model = folder / "model"
    if not model.exists() and "serve" in args.only:
        command = [*kanawa(old), "train", "quickstart", "--steps", "1", "--run", str(model)]
        subprocess.run(command, check=True, capture_output=True)
    for case in args.only.split(","):
        began = time.perf_counter()
        if case in _CASES:
            found = step(case, new, old, args.pairs)
        elif case == "start":
            found = start(new, old, max(4, args.pairs // 3), folder)
        else:
            found = serve("bfloat16" if case.endswith("bfloat16") else "float32", new, old, args.pairs, model)
        line = {"case": case, **found, "measured_in": time.perf_counter() - began}
        sys.stdout.write(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in line.items()}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
