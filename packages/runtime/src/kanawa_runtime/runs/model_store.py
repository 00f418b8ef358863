"""Runs as a model store: a model from elsewhere becomes a run whose checkpoint 0 holds it, ready to use and to train.

What the origin wants back when the model returns to it lies in the run's `origin` folder: notes and carried files.
"""

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.arrays.shardings import abstract_params
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.config import Config, to_json
from kanawa.contracts import Batch, Model, ModelStore, StoredModel, without_companions
from kanawa.errors import UsageError
from kanawa.guarded_read import UnreadableFileError, check_readable, guarded_json
from kanawa.module import Module, param_specs, state_specs

from kanawa_runtime.checkpoint import AutoCheckpointer
from kanawa_runtime.runs.environment_record import environment_record
from kanawa_runtime.runs.imported import check_sound, imported_experiment
from kanawa_runtime.runs.run_directory import (
    CHECKPOINTS,
    CONFIG,
    FORMAT,
    MOST_CONFIG_BYTES,
    OF_TRAINING,
    ORIGIN,
    PLUGINS,
    read_config,
)
from kanawa_runtime.runs.tokenizer_file import exported_tokenizer
from kanawa_runtime.storage.durable import write_durable

NOTES = "notes.json"


class RunStore(ModelStore):
    """Run directories: config.json, checkpoints/STEP, origin/."""

    def holds(self, directory: Path) -> bool:
        """Returns whether config.json is a config of ours."""
        try:
            config = guarded_json(directory / CONFIG, directory, most=MOST_CONFIG_BYTES)
        except (OSError, UnreadableFileError):
            return False
        return isinstance(config, dict) and "$type" in config

    def outline(self, directory: Path, step: int | None = None) -> StoredModel:
        """Returns the run's model, what it carries and its origin's notes, without arrays.

        What it carries is its tokenizer, as other libraries read it: that of its data, else of its origin.
        """
        origin = directory / ORIGIN
        notes = _notes(origin / NOTES, directory)
        files: dict[str, Path | bytes] = {p.name: p for p in sorted(origin.glob("*")) if p.name != NOTES}
        for name in files:
            check_readable(origin / name, directory)
        files |= exported_tokenizer(directory)
        model = without_companions(read_config(directory, OF_TRAINING).model)
        return StoredModel(model, {}, {}, files, notes)

    def load(self, directory: Path, step: int | None = None) -> StoredModel:
        """Returns the model of a run's newest step or `step`, as host arrays."""
        from kanawa_runtime.runs.open_run import open_run

        outline = self.outline(directory)
        if _has_own_records(outline.config):
            arrays = _stored_arrays(directory, outline.config.build(), step)
        else:
            run = open_run(directory, step=step, serves=True)
            arrays = run.params, run.state
        params, state = jax.device_get(tuple(flatten_paths(tree) for tree in arrays))
        return dataclasses.replace(outline, params=params, state=state)

    def save(self, directory: Path, model: StoredModel) -> None:
        """Writes the run with checkpoint 0; raises UsageError where the directory is in use, or the model not sound."""
        check_sound(model, "the model")
        params, state = _tree(model.params), _tree(model.state)
        with new_run(directory, to_json(imported_experiment(model.config)), params, state, imported=True) as folder:
            (folder / ORIGIN).mkdir()
            model.write_files(folder / ORIGIN)
            write_durable(folder / ORIGIN / NOTES, json.dumps(dict(model.notes), indent=1).encode())


@contextlib.contextmanager
def new_run(
    directory: Path, config: Mapping[str, Any], params: Any, state: Any, step: int = 0, **meta: Any
) -> Iterator[Path]:
    """Writes a run with one checkpoint; inside, its folder takes further files. Raises UsageError for one in use."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        message = f"{directory} already exists; give a new directory, nothing is overwritten"
        raise UsageError(message)
    # Written beside its place and renamed: half a run must not look like one.
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        record = environment_record()
        checkpoints = AutoCheckpointer.Config().build(directory=partial / CHECKPOINTS)
        try:
            checkpoints.save(step, params=params, opt={}, state=state, meta=record | meta)
        finally:
            checkpoints.close()
        write_durable(partial / PLUGINS, json.dumps(record | {"format": FORMAT}, indent=1).encode())
        write_durable(partial / CONFIG, json.dumps(config, indent=1).encode())
        os.replace(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _has_own_records(model: Config) -> bool:
    """Returns whether no trainer of ours makes a model's batches: such a run was imported, and can't be composed."""
    kind = model._target
    return kind is not None and issubclass(kind, Model) and kind.batch is not Batch


def _stored_arrays(directory: Path, module: Module, step: int | None) -> tuple[Any, Any]:
    """Returns the parameters and the state of a run's checkpoint; raises UsageError where there is none."""
    wanted = {
        "params": abstract_params(param_specs(module)),
        "state": abstract_params(state_specs(module)),
    }
    checkpoints = AutoCheckpointer.Config().build(directory=directory / CHECKPOINTS, read_only=True)
    restored = checkpoints.restore(wanted, step=step)
    if restored is None:
        message = f"{directory} holds no committed checkpoint"
        raise UsageError(message)
    return restored.items["params"], restored.items["state"]


def _notes(file: Path, directory: Path) -> dict[str, Any]:
    """Returns what the origin wants back, {} without; raises UsageError for what no import of ours wrote."""
    if not os.path.lexists(file):
        return {}
    notes = guarded_json(file, directory, most=MOST_CONFIG_BYTES)
    if not isinstance(notes, dict):
        message = f"{file} isn't what an import writes, which is an object; import the model again"
        raise UsageError(message)
    return notes


def _tree(arrays: Any) -> dict[str, Any]:
    return unflatten_paths({path: jnp.asarray(np.asarray(array)) for path, array in arrays.items()})
