"""Opening a run, or a folder of another library, for use: its config, its model and its parameters."""

import dataclasses
from pathlib import Path
from typing import Any

from kanawa.composition.environment import environment
from kanawa.composition.experiment import Composition, compose
from kanawa.contracts import Environment
from kanawa.errors import UsageError

from kanawa_runtime.data.tokenizers.tokenizer import load_tokenizer
from kanawa_runtime.serve.imported import fitted, imported_experiment, place, stored_elsewhere
from kanawa_runtime.train.loop import TOKENIZER
from kanawa_runtime.train.run_directory import CHECKPOINTS, read_config
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
    directory: Path,
    *,
    target: str | None = None,
    modifiers: tuple[str, ...] = (),
    overrides: tuple[str, ...] = (),
    step: int | None = None,
    data: str | None = None,
) -> OpenedRun:
    """Returns the run with its newest sound checkpoint, or that of `step`; raises UsageError where there is none.

    The mesh of the training run is dropped: `target` or this process's devices decide. A folder that a catalogued
    model store holds, such as Hugging Face's, opens like a run at step 0. `data` names an experiment whose data and
    evaluation take the place of the run's.
    """
    stored = stored_elsewhere(directory, step)
    cfg = read_config(directory).clone() if stored is None else imported_experiment(stored.config)
    cfg.execution.set(mesh=None, strategies=())
    if data is not None:
        other = compose(data).config
        cfg.set(data=other.data, evaluation=other.evaluation, batch_size=other.batch_size)
    composition = compose(cfg, target, modifiers, overrides)
    trainer: Trainer = composition.workload()
    found = environment(composition)
    abstract = trainer.abstract_state(found)
    if stored is not None:
        params, state = place(fitted(stored, trainer.model), abstract.params), place(stored.state, abstract.state)
        return OpenedRun(directory, composition, trainer, found, params, state, 0)
    with found.active():
        checkpoints = composition.config.checkpointer.build(directory=directory / CHECKPOINTS, read_only=True)
        wanted = {"params": abstract.params, "state": abstract.state}
        if trainer.rule.averages:
            wanted["opt"] = abstract.opt
        restored = checkpoints.restore(wanted, step=step)
    if restored is None:
        message = f"{directory} holds no committed checkpoint yet; train it first: kanawa train … --run {directory}"
        raise UsageError(message)
    params = trainer.evaluated(restored.items["params"], restored.items.get("opt", {}))
    state = restored.items["state"]
    return OpenedRun(directory, composition, trainer, found, params, state, restored.step)


def tokenizer_of(run: OpenedRun) -> Any:
    """Returns the tokenizer kept with the run; raises UsageError where its data has none."""
    kept = run.directory / TOKENIZER
    if kept.exists() and (run.directory / CHECKPOINTS).is_dir():
        return load_tokenizer(kept)
    message = f"{run.directory} has no tokenizer of ours; give --prompt-ids 1,2,3 instead of --prompt"
    raise UsageError(message)
