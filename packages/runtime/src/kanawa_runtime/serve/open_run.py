"""Opening a run, or a folder of another library, for use: its config, its model and its parameters."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
from kanawa.composition.environment import environment
from kanawa.composition.experiment import Composition, compose
from kanawa.composition.target import parse_target
from kanawa.contracts import Environment
from kanawa.errors import UsageError

from kanawa_runtime.checkpoint.choose import checkpointer_for
from kanawa_runtime.data.tokenizers.folder import other_tokenizers, unreadable
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from kanawa_runtime.experiments.folders import tokenizer_file
from kanawa_runtime.experiments.other_data import check_read_by_its_own, on_other_data, read_by
from kanawa_runtime.serve.imported import fitted, imported_experiment, place, stored_elsewhere
from kanawa_runtime.serve.run_path import check_is_directory, looks_like_run, not_a_run
from kanawa_runtime.storage.mirror import readable_folder
from kanawa_runtime.storage.place import shown_place
from kanawa_runtime.train.run_directory import OF_TRAINING, ORIGIN, checkpoints_of, read_config
from kanawa_runtime.train.trainer import Trainer


@dataclasses.dataclass(frozen=True)
class OpenedRun:
    """A run's trainer with the parameters and state of step `step`."""

    directory: Path
    composition: Composition
    trainer: Trainer
    environment: Environment
    params: Any
    state: Any
    step: int


def open_run(
    directory: Path | str,
    *,
    target: str | None = None,
    modifiers: tuple[str, ...] = (),
    overrides: tuple[str, ...] = (),
    step: int | None = None,
    data: str | None = None,
    serves: bool = False,
) -> OpenedRun:
    """Returns the run with its newest sound checkpoint, or that of `step`; raises UsageError where there is none.

    The mesh of the training run is dropped: `target` or this process's devices decide. Its batches are of no concern to
    a model that `serves`. A folder that a catalogued
    model store holds, such as Hugging Face's, opens like a run at step 0. `data` is what `--data` says: the
    name of an experiment or a source, or files. Text is read by the tokenizer that lies in the folder.
    """
    directory = readable_folder(directory)
    check_is_directory(directory)
    stored = stored_elsewhere(directory, step)
    if stored is None and not looks_like_run(directory):
        raise not_a_run(directory)
    cfg = read_config(directory, OF_TRAINING).clone() if stored is None else imported_experiment(stored.config)
    cfg.execution.set(mesh=None, strategies=())
    if serves:
        # There is no batch, whose rows a mesh would have to divide: as many as devices any mesh of them does.
        cfg.set(batch_size=jax.device_count() if target is None else parse_target(target).jax_devices)
    kept = tokenizer_file(directory)
    if data is not None:
        cfg = on_other_data(cfg, data, kept)
        check_read_by_its_own(cfg.data, directory)
    elif kept is not None:
        # The corpus may have changed since, and a tokenizer learned from it now would be another one.
        read_by(cfg.data, kept)
    composition = compose(cfg, target, modifiers, overrides)
    trainer: Trainer = composition.workload()
    where = environment(composition)
    abstract = trainer.abstract_state(where)
    if stored is not None:
        params, state = place(fitted(stored, trainer.model), abstract.params), place(stored.state, abstract.state)
        return OpenedRun(directory, composition, trainer, where, params, state, 0)
    with where.active():
        saved = checkpoints_of(directory)
        checkpoints = checkpointer_for(composition.config.checkpointer, saved).build(directory=saved, read_only=True)
        wanted = {"params": abstract.params, "state": abstract.state}
        # Such rules train one point and evaluate another, an average that only their own state gives.
        if trainer.rule.averages:
            wanted["opt"] = abstract.opt
        restored = checkpoints.restore(wanted, step=step)
    if restored is None:
        where_it_lies = shown_place(directory)
        message = (
            f"{where_it_lies} holds no committed checkpoint yet; train it first: kanawa train … --run {where_it_lies}"
        )
        raise UsageError(message)
    params = trainer.evaluated(restored.items["params"], restored.items.get("opt", {}))
    state = restored.items["state"]
    return OpenedRun(directory, composition, trainer, where, params, state, restored.step)


def tokenizer_of(run: OpenedRun) -> Tokenizer | None:
    """Returns the tokenizer of the run's data, of its origin, or of another library's folder; None without one.

    Raises TokenizerError where one is there and can't be read, UsageError where the model has no room for its ids.
    """
    file = tokenizer_file(run.directory)
    if file is None:
        return None
    tokenizer = load_tokenizer(file)
    rows = run.composition.config.model.vocab_size
    if tokenizer.vocab_size > rows:
        message = (
            f"the tokenizer {file} has {tokenizer.vocab_size} ids, but the model has rows for {rows}: they don't "
            "belong together; put the model's own tokenizer there"
        )
        raise UsageError(message)
    return tokenizer


def no_tokenizer(run: OpenedRun) -> UsageError:
    """Returns the error of a prompt in text for a run without a tokenizer."""
    folders = (run.directory / ORIGIN, run.directory)
    place = next((folder for folder in folders if other_tokenizers(folder)), run.directory)
    return UsageError(f"{unreadable(place)}; or give --prompt-ids 1,2,3 instead of --prompt")
