"""Averaging checkpoints: the mean of several steps' parameters, as a new run that every verb takes."""

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.errors import UsageError
from kanawa.guarded_read import guarded_json

from kanawa_runtime.runs.model_store import new_run
from kanawa_runtime.runs.tokenizer_file import TOKENIZER
from kanawa_runtime.runs.open_run import open_run
from kanawa_runtime.runs.run_path import check_is_run
from kanawa_runtime.storage.place import shown_place
from kanawa_runtime.runs.run_directory import CONFIG, MOST_CONFIG_BYTES, ORIGIN, steps_of

_FEWEST = 2


def average_checkpoints(run: Path, out: Path, steps: list[int] | None = None, last: int | None = None) -> list[int]:
    """Writes a run with the mean of a run's steps and returns them; raises UsageError, and then writes nothing.

    Without `steps` the `last` ones are averaged, or all that are kept. Sums are made in float64, arrays of other kinds
    than floating point are those of the newest step. The optimizer's state is left out: an average was never trained.
    """
    check_is_run(run)
    chosen = _chosen(run, steps, last)
    if out.exists():
        message = f"{out} already exists; give a new directory with --out, nothing is overwritten"
        raise UsageError(message)
    sums: dict[str, np.ndarray] = {}
    for step in chosen:
        opened = open_run(run, step=step)
        if opened.trainer.averages and opened.composition.config.learner.average is None:
            message = f"{shown_place(run)}: its optimizer evaluates an average of all its steps already"
            raise UsageError(message)
        values = jax.device_get(flatten_paths(opened.params))
        for path, value in values.items():
            share = np.asarray(value)
            if not jnp.issubdtype(share.dtype, jnp.floating):
                sums[path] = share
            elif path in sums:
                sums[path] += share.astype(np.float64)
            else:
                sums[path] = share.astype(np.float64)
    state = jax.device_get(opened.state)
    means = {path: _mean(total, len(chosen), values[path]) for path, total in sums.items()}
    _write(run, out, chosen, means, state)
    return chosen


def _chosen(run: Path, steps: list[int] | None, last: int | None) -> list[int]:
    kept = steps_of(run)
    if steps is None:
        steps = kept if last is None else kept[-last:] if last > 0 else []
    missing = [step for step in steps if step not in kept]
    if missing:
        message = f"{shown_place(run)} has no checkpoint {', '.join(map(str, missing))}; it has {kept or 'none'}"
        raise UsageError(message)
    if len(steps) < _FEWEST:
        message = f"an average takes two checkpoints at least, and {len(steps)} was asked for; the run has {kept}"
        raise UsageError(message)
    return steps


def _mean(total: np.ndarray, count: int, like: Any) -> np.ndarray:
    like = np.asarray(like)
    return total if total.dtype == like.dtype and total.dtype != np.float64 else (total / count).astype(like.dtype)


def _write(run: Path, out: Path, steps: list[int], params: dict[str, np.ndarray], state: Any) -> None:
    arrays = unflatten_paths({path: jnp.asarray(value) for path, value in params.items()})
    facts: dict[str, Any] = {"average_of": steps, "of_run": shown_place(run)}
    with new_run(out, _config(run), arrays, jax.tree.map(jnp.asarray, state), steps[-1], **facts) as folder:
        for name in (TOKENIZER, ORIGIN):
            if (run / name).is_dir():
                shutil.copytree(run / name, folder / name)
            elif (run / name).exists():
                shutil.copyfile(run / name, folder / name)


def _config(run: Path) -> dict[str, Any]:
    """Returns the run's config without a moving average: what is written is one already."""
    body: dict[str, Any] = guarded_json(run / CONFIG, run, most=MOST_CONFIG_BYTES)
    learner = body.get("learner")
    if isinstance(learner, dict) and learner.get("average"):
        learner["average"] = None
    return body
