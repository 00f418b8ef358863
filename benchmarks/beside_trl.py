"""What the comparisons with TRL share: a folder trained by either library, losses step by step, tokens a second."""

import dataclasses
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from kanawa_runtime.runs.run_directory import read_config

HERE = pathlib.Path(__file__).parent
#: Steps at the start that compile or warm up.
_COLD = 3


@dataclasses.dataclass(frozen=True)
class Side:
    """Losses, seconds and tokens (padding left out) of each step."""

    losses: list[float]
    seconds: list[float]
    tokens: list[float]

    @property
    def tokens_per_second(self) -> float:
        """Tokens of a median step by its seconds."""
        return statistics.median(t / s for t, s in zip(self.tokens[_COLD:], self.seconds[_COLD:], strict=True))


def theirs(python: str, kind: str, **settings: Any) -> dict[str, Any]:
    """Returns what a function of trl_side.py prints, run by another environment's Python."""
    command = [python, str(HERE / "trl_side.py"), kind, json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    if done.returncode:
        sys.exit(f"trl_side.py {kind} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def their_side(python: str, kind: str, **settings: Any) -> Side:
    """Returns a training by TRL."""
    made = theirs(python, kind, **settings)
    return Side(made["losses"], made["seconds"], made["tokens"])


def our_side(folder: pathlib.Path, name: str, arguments: Sequence[str], *, steps: int, batch: int, rate: float) -> Side:
    """Returns a training of FOLDER/model by `kanawa train` with these arguments, as its events recorded it.

    The optimizer is the same: AdamW without decay or clipping, at a constant rate, in fp32.
    """
    run = folder / name
    sets = {
        "batch_size": batch,
        "learner.schedule": "constant",
        "learner.schedule.peak": rate,
        "learner.optimizer": "adamw",
        "learner.optimizer.weight_decay": 0.0,
        "learner.optimizer.b2": 0.999,
        "learner.clip_norm": "null",
        "checkpoints.every_steps": 1_000_000,
        "evaluation.every_steps": 1_000_000,
        "data.validation_one_in": 0,
        "data.shuffle": "false",
    }
    options = [part for path, value in sets.items() for part in ("--set", f"{path}={value}")]
    command = ["kanawa", "train", str(folder / "model"), "--run", str(run), "--steps", str(steps), *options, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    taken = [event for event in events if event["event"] == "step"]
    # Events count the tokens that are learned; what is compared is all that a step computes, without padding.
    data = read_config(run).data.build()
    rows = ((data.row(i)["segment_ids"] > 0).sum() for i in range(steps * batch))
    read = [int(sum(itertools.islice(rows, batch))) for _ in range(steps)]
    return Side([e["loss"] for e in taken], [e["seconds"] for e in taken], read)


def largest_difference(first: Side, second: Side, steps: int) -> float:
    """Returns the largest relative difference of two trainings' losses in their first steps."""
    pairs = list(zip(first.losses[:steps], second.losses[:steps], strict=True))
    if len(pairs) < steps:
        sys.exit(f"{len(pairs)} steps were taken, expected {steps}")
    return max(abs(a - b) / abs(b) for a, b in pairs)


def _environment() -> dict[str, str]:
    # Test sessions turn optimisations off.
    kept = {
        name: value for name, value in os.environ.items() if name not in ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS")
    }
    return {**kept, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "JAX_PLATFORMS": "cpu"}
