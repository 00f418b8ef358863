"""Opening a run, or a folder of another library, for use: its config, its model and its parameters."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.composition.environment import environment
from kanawa.composition.experiment import Composition, Override, compose
from kanawa.composition.naming import Base, with_other_data
from kanawa.composition.plain import to_plain
from kanawa.composition.target import local_target, parse_target
from kanawa.contracts import (
    Batch,
    DataSource,
    Environment,
    Model,
    companions_of,
    without_companion_params,
    without_companions,
)
from kanawa.errors import UsageError
from kanawa.module import param_specs
from kanawa.plugins import MeshRule, component
from kanawa.plugins.records import Purpose

from kanawa_runtime.runs.imported import fitted, imported_experiment, place, reformed, stored_elsewhere
from kanawa_runtime.runs.run_directory import OF_TRAINING, checkpoints_of, read_config
from kanawa_runtime.runs.run_path import check_is_directory, looks_like_run, not_a_run
from kanawa_runtime.runs.tokenizer_file import tokenizer_file
from kanawa_runtime.storage.mirror import readable_folder
from kanawa_runtime.storage.place import shown_place

logger = logging.getLogger(__name__)


class TrainedWorkload(Protocol):
    """What a workload has so that its runs can be opened; the trainer's members."""

    config: Any
    model: Model
    source: DataSource

    @property
    def averages(self) -> bool:
        """Whether what is evaluated is an average that only the optimizer's state gives."""

    def abstract_state(self, environment: Environment) -> Any:
        """Returns shapes, dtypes and shardings of `params`, `state` and `opt`."""

    def evaluated(self, params: Any, opt: Any) -> Any:
        """Returns the parameters to evaluate and to serve."""

    def programs(self, environment: Environment) -> Any:
        """Returns the programs by name; see `Workload`."""


@dataclasses.dataclass(frozen=True)
class OpenedRun:
    """A run's trainer with the parameters and state of step `step`."""

    directory: Path
    composition: Composition
    trainer: TrainedWorkload
    environment: Environment
    params: Any
    state: Any
    step: int
    #: How long the sequences are that the model was trained on; None where nobody knows.
    trained_length: int | None = None


def open_run(
    directory: Path | str,
    *,
    target: str | None = None,
    modifiers: tuple[str, ...] = (),
    overrides: Sequence[Override] = (),
    step: int | None = None,
    data: str | None = None,
    serves: bool = False,
) -> OpenedRun:
    """Returns the run with its newest sound checkpoint, or that of `step`; raises UsageError where there is none.

    The mesh of the training run is dropped: `target` or this process's devices decide. Its batches, and frozen models
    that only its loss asks, are of no concern to a model that `serves`; without a target it is spread over all of this
    process's devices where it is placed so that they divide its weights. A folder that a catalogued
    model store holds, such as Hugging Face's, opens like a run at step 0. `data` is what `--data` says: the
    name of an experiment or a source, or files. Text is read by the tokenizer that lies in the folder.
    """
    directory = readable_folder(directory)
    check_is_directory(directory)
    stored = stored_elsewhere(directory, step)
    if stored is None and not looks_like_run(directory):
        raise not_a_run(directory)
    if stored is None:
        cfg = read_config(directory, OF_TRAINING).clone()
    else:
        cfg = imported_experiment(stored.config, None if target is None else parse_target(target).device.platform)
    cfg.execution.set(mesh=None, strategies=())
    saved_cfg = cfg.clone()
    if serves:
        target = _serve_only(cfg, target, modifiers, overrides, is_stored=stored is not None)
    saved_tokenizer = tokenizer_file(directory)
    if data is not None:
        cfg = with_other_data(Base(type(cfg).__qualname__, cfg, directory), data).config
    elif saved_tokenizer is not None:
        # The corpus may have changed since, and a tokenizer learned from it now would be another one.
        cfg.data.set_tokenizer_file(str(saved_tokenizer.resolve()))
    purpose: Purpose = "decode" if serves else "train"
    composition = compose(cfg, target, modifiers, overrides, purpose=purpose)
    trainer: TrainedWorkload = composition.workload()
    where = environment(composition)
    abstract = trainer.abstract_state(where)
    if stored is not None:
        params, state = place(fitted(stored, trainer.model), abstract.params), place(stored.state, abstract.state)
        return OpenedRun(directory, composition, trainer, where, params, state, 0, trainer.model.trained_length())
    saved_cfg.set(batch_size=cfg.batch_size)
    trained = _trained_workload(saved_cfg, target, modifiers, overrides, trainer, composition.rule)
    with where.active():
        stored_state = abstract if trained is trainer else trained.abstract_state(where)
        saved = checkpoints_of(directory)
        checkpoints = composition.config.checkpointer.build(directory=saved, read_only=True)
        wanted = {"params": stored_state.params, "state": stored_state.state}
        # Such rules train one point and evaluate another, an average that only their own state gives.
        if trained.averages:
            wanted["opt"] = stored_state.opt
        restored = checkpoints.restore(wanted, step=step)
    if restored is None:
        where_it_lies = shown_place(directory)
        message = (
            f"{where_it_lies} holds no committed checkpoint yet; train it first: kanawa train … --run {where_it_lies}"
        )
        raise UsageError(message)
    params = trained.evaluated(restored.items["params"], restored.items.get("opt", {}))
    if trained is not trainer:
        with where.active():
            params = _fitting(params, trained.model, trainer.model)
            if modifiers:
                before = without_companions(trained.model.config) if serves else trained.model.config
                plain = to_plain(before.build(), params)
                params = place(flatten_paths(reformed(trainer.model, plain)), abstract.params)
    state = _fitting(restored.items["state"], trained.model, trainer.model)
    lengths = (trainer.model.trained_length(), cfg.data.sequence_length)
    longest = max((length for length in lengths if length is not None), default=None)
    return OpenedRun(directory, composition, trainer, where, params, state, restored.step, longest)


def _serve_only(
    cfg: Any, target: str | None, modifiers: tuple[str, ...], overrides: Sequence[Override], *, is_stored: bool
) -> str | None:
    """Takes from a config what serving has no use for; returns the target, by default all devices where that helps."""
    cfg.set(model=without_companions(cfg.model))
    wanted = cfg.model._target.batch_of(cfg.model)
    # What was imported has rows of tokens as a stand-in, whatever its model learns from.
    if wanted is not Batch and (is_stored or cfg.data._target.batch is not wanted):
        cfg.set(data=component("data", "kanawa-runtime:no-rows").Config())
    target = target or _all_devices(cfg, modifiers, overrides)
    # There is no batch, whose rows a mesh would have to divide: as many as devices any mesh of them does.
    cfg.set(batch_size=jax.device_count() if target is None else parse_target(target).jax_devices)
    return target


def _all_devices(cfg: Any, modifiers: tuple[str, ...], overrides: Sequence[Override]) -> str | None:
    """Returns the target of this process's devices where all of them serve a model quicker than one; else None."""
    count = jax.local_device_count()
    if count == 1 or jax.process_count() > 1 or any(text.partition(":")[0] == "mesh" for text in modifiers):
        return None
    here = local_target()
    # The devices of one divided machine share its cores and its memory.
    if here is None or parse_target(here).device.divisible:
        return None
    several = compose(cfg.clone().set(batch_size=count), here, modifiers, overrides, purpose="decode")
    mesh, rule = several.config.execution.mesh, several.rule
    if mesh is not None and set(mesh.axes) - {"data"}:
        return here
    why = f": {rule.reason}" if rule is not None and rule.reason else ""
    logger.warning("one of %d devices serves, for copies on the others gain nothing%s", count, why)
    return None


def _trained_workload(
    cfg: Any,
    target: str | None,
    modifiers: tuple[str, ...],
    overrides: Sequence[Override],
    trainer: TrainedWorkload,
    rule: MeshRule | None,
) -> TrainedWorkload:
    """Returns the workload whose parameters the run saved: another where modifiers store the weights otherwise."""
    if not modifiers and not companions_of(cfg.model.build()):
        return trainer
    before: TrainedWorkload = compose(cfg, target, (), overrides, rule=rule).workload()
    same = flatten_paths(param_specs(before.model)) == flatten_paths(param_specs(trainer.model))
    return trainer if same else before


def _fitting(arrays: Any, saved: Model, opened: Model) -> Any:
    """Returns a run's arrays without those of companions, where the opened model has none."""
    if companions_of(opened) or not companions_of(saved):
        return arrays
    return unflatten_paths(without_companion_params(flatten_paths(arrays), saved))
