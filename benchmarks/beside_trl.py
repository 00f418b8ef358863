"""What the comparisons with TRL share: a folder trained by either library, and losses step by step."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import kanawa as kn

HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Side:
    """Losses of each step."""

    losses: list[float]


def theirs(python: str, kind: str, **settings: Any) -> dict[str, Any]:
    """Returns what a function of trl_side.py prints, run by another environment's Python."""
    command = [python, str(HERE / "trl_side.py"), kind, json.dumps(settings)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"trl_side.py {kind} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def side_of(made: Mapping[str, Any]) -> Side:
    """Returns a training by TRL."""
    return Side(made["losses"])


def our_side(
    folder: pathlib.Path, name: str, data: str, modify: Sequence[str], *, steps: int, batch: int, rate: float,
    more: Mapping[str, Any] | None = None, **fields: Any,
) -> Side:  # fmt: skip
    """Returns a training of FOLDER/model by `kn.train` in the run FOLDER/name, as its events recorded it.

    The optimizer is the same: AdamW without decay or clipping, at a constant rate, in fp32.
    `fields` are of the data, `more` of the trainer.
    """
    run = folder / name
    never, component = 1_000_000, kn.component
    sets = {
        "batch_size": batch,
        "learner.schedule": component("schedules", "constant").Config(peak=rate),
        "learner.optimizer": component("optimizers", "adamw").Config(weight_decay=0.0, b2=0.999),
        "learner.clip_norm": None,
        "checkpoints.every_steps": never,
        "evaluation.every_steps": never,
        "data.validation_one_in": 0,
        "data.shuffle": False,
        **{f"data.{field}": value for field, value in fields.items()},
        **(more or {}),
    }
    source = str(folder / data)
    kn.train(str(folder / "model"), run=run, steps=steps, data=source, modify=modify, set=sets, progress=False)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    taken = [event for event in events if event["event"] == "step"]
    return Side([event["loss"] for event in taken])


def apart(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns the largest relative difference of two trainings' losses, step by step; below 1 it is absolute."""
    return max(abs(a - b) / max(abs(b), 1.0) for a, b in zip(first, second, strict=True))


def write_fixture(file: pathlib.Path, script: str, versions: Mapping[str, str], losses: Mapping[str, Any]) -> None:
    """Writes TRL's losses by name, and what they came from, for tests."""
    made = {"script": f"benchmarks/{script} --small --write", "versions": dict(versions), "losses": dict(losses)}
    file.write_text(json.dumps(made, indent=1) + "\n")
