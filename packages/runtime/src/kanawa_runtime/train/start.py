"""From an opened run to a compiled step: data, state (restored, new or from elsewhere), programs."""

import dataclasses
import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.composition.plain import with_adapter_factors
from kanawa.contracts import (
    Batch,
    CheckpointError,
    DataSource,
    Environment,
    Program,
    Restored,
    RolloutBatch,
    StoredAdapter,
    StoredModel,
    companions_of,
    pretrained_parts,
    without_companion_params,
    without_companions,
)
from kanawa.errors import UsageError
from kanawa.guarded_read import check_readable
from kanawa.kernels import KernelChoice
from kanawa.module import Module
from kanawa.plugins import host

from kanawa_runtime import faults
from kanawa_runtime.checkpoint.layout import recorded_commits
from kanawa_runtime.runs.adapter_folder import holds_adapter_alone, load_adapter
from kanawa_runtime.runs.imported import check_sound, fitted, place, stored_model
from kanawa_runtime.runs.run_directory import EVENTS, checkpoints_of, unwritable
from kanawa_runtime.runs.tokenizer_file import TOKENIZER
from kanawa_runtime.storage.place import shown_place
from kanawa_runtime.train.attempt import Attempt
from kanawa_runtime.train.batches import check_vocabulary
from kanawa_runtime.train.branch import Branch
from kanawa_runtime.train.evaluate import Evaluator, Sampler, named_sets, sampler_of
from kanawa_runtime.train.init_from import InitFrom, matched, with_new_parts
from kanawa_runtime.train.outcome import shown
from kanawa_runtime.train.packed_step import PackedStep, packable
from kanawa_runtime.train.program_record import KernelRecord, counted_hits, program_record
from kanawa_runtime.train.rollout_slot import RolloutWriter
from kanawa_runtime.train.split_step import SplitProgram
from kanawa_runtime.train.task_slot import TaskScorer, TaskSuite
from kanawa_runtime.train.trainer import TrainState

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where the first state of an attempt comes from; `path` for all but a new one."""

    kind: Literal["new", "resumed", "initialised", "branched"]
    step: int = 0
    path: str = ""

    def sentence(self) -> str:
        """Returns the line to show."""
        if self.kind == "resumed":
            return f"resuming at step {self.step} from {shown(self.path)}"
        if self.kind == "branched":
            return f"going on from step {self.step} of another run, {shown(self.path)}"
        if self.kind == "initialised":
            return f"starting at step 0, initialised from {shown(self.path)}"
        return "starting at step 0 from new parameters"


@dataclasses.dataclass(frozen=True)
class Started:
    """All that stepping needs. `evaluation_due`: the step's evaluation was cut short by a stop."""

    origin: Origin
    state: TrainState
    step_program: Any
    abstract_batch: Batch | RolloutBatch
    evaluator: Evaluator
    sampler: Sampler | None
    kernels: KernelRecord
    digest: str
    evaluation_due: bool
    rollouts: RolloutWriter | None = None
    tasks: TaskScorer | None = None


def start(attempt: Attempt) -> Started:
    """Returns what stepping needs; raises UsageError for data or parameters that don't fit, RunStopped at a signal."""
    began = time.perf_counter()
    screen, journal, programs = attempt.screen, attempt.journal, attempt.prepared.programs
    digest = _data_digest(attempt)
    checkpointer = type(attempt.checkpoints)
    name = host().name_of(checkpointer) or checkpointer.__qualname__
    journal.write(
        "run_started",
        **attempt.run.description(),
        data_digest=digest,
        total_steps=attempt.total,
        checkpointer=name,
    )
    account = attempt.trainer.source.account()
    if account:
        journal.write("data", **account)
    screen.say(f"checkpoints go to {shown(attempt.run.checkpoints)}, written by {name}")
    for change in attempt.run.changes:
        screen.say(f"changed since the last attempt: {change}")
    _keep_tokenizer(attempt)
    abstract_state, abstract_batch = programs["train_step"].abstract_args
    with screen.phase("restoring"), attempt.sections.within("restore"):
        restored = _restored(attempt, abstract_state, digest)
        is_branch = restored is None and attempt.branch is not None
        if attempt.branch is not None and restored is None:
            restored = _branched(attempt, attempt.branch, abstract_state, digest)
    if restored is None:
        origin, state = _first_state(attempt, programs["init"], abstract_state)
    else:
        place = restored.place or ("" if is_branch else attempt.checkpoints.location(restored.step))
        place = attempt.branch.place if is_branch and attempt.branch else place
        origin = Origin("branched" if is_branch else "resumed", restored.step, place)
        state = _state_of(restored, abstract_state)
    if restored is not None and restored.data["digest"] == digest:
        attempt.trainer.source.resume(int(restored.data["row"]), restored.data.get("source", {}))
    screen.say(origin.sentence())
    _warn_of_length(attempt.trainer.model, _row_length(attempt.trainer.source))
    lost = attempt.run.events().last_step - origin.step
    if lost > 0 and attempt.from_step is None:
        steps = f"steps {origin.step + 1} to {origin.step + lost}" if lost > 1 else f"step {origin.step + 1}"
        screen.say(f"taken again, since the last attempt did not save them: {steps} ({lost} in all)")
    journal.started(origin.step)
    kernels = KernelRecord.of({} if restored is None else restored.meta, jax.default_backend())
    where, cfg = kernels.applied(attempt.prepared.environment), attempt.config
    programs = attempt.prepared.on(where).programs
    step: Program | SplitProgram = programs["train_step"]
    if cfg.rollouts is not None and cfg.rollouts.has_draw_keys:
        step = SplitProgram(attempt.trainer, programs["train_step"])
    step_program, from_cache = _compiled(attempt, step, kernels)
    if packable(attempt.trainer, programs["train_step"]):
        step_program = PackedStep(
            programs["train_step"], step_program, lambda program: _compiled(attempt, program, kernels)[0]
        )
    record = program_record(attempt.trainer, step_program, where.plan.precision.compute)
    journal.write("program", **record, from_cache=from_cache)
    seconds = time.perf_counter() - began
    journal.write("prepared", step=origin.step, origin=origin.kind, path=origin.path or None, seconds=seconds)
    due = restored is not None and bool(restored.data.get("evaluation_due"))
    tokenizer = attempt.run.path / TOKENIZER
    evaluator = Evaluator(
        cfg,
        programs["eval_step"],
        lambda choices: _record_kernels(attempt, kernels.add(choices)),
        named=named_sets(cfg, tokenizer if tokenizer.exists() else None),
    )
    sampler = sampler_of(cfg.sample_prompt, attempt.trainer.model, attempt.trainer.source, where)
    tasks = _tasks(attempt, where)
    rollouts = None
    if cfg.rollouts is not None:
        reference = _reference(attempt, programs["init"], abstract_state, None if restored else state)
        rollouts = _rollouts(attempt, where, abstract_batch, state, reference, restored, step_program)
    return Started(
        origin, state, step_program, abstract_batch, evaluator, sampler, kernels, digest, due, rollouts, tasks
    )


def _tasks(attempt: Attempt, where: Environment) -> TaskScorer | None:
    """Returns what scores the run on tasks, which are read now; None without any."""
    cfg, trainer = attempt.config, attempt.trainer
    suite: TaskSuite | None = cfg.evaluation.tasks
    if suite is None:
        return None
    with attempt.screen.phase("reading tasks"):
        count = jax.process_count()
        return suite.scorer(trainer.model, trainer.source, where, batch_size=cfg.batch_size, processes=count)


def _row_length(source: DataSource) -> int:
    """Returns the length of a row's longest sequence; 0 where its record has none."""
    fields = (field for field in source.fields.values() if field is not None)
    sizes = (zip(field.axes, field.shape, strict=True) for field in fields)
    return max((size for field in sizes for axis, size in field if axis == "length"), default=0)


def _warn_of_length(model: Module, length: int) -> None:
    """Says so where rows are longer than the sequences whose positions a model knows."""
    trained = model.trained_length()
    if trained is not None and length > trained:
        logger.warning(
            "rows are %d tokens long, and the model's positions are for sequences of %d: it has to learn those beyond; "
            "--modify rope-yarn:factor=%d, or rope-linear, rope-ntk or rope-longrope, stretches rotary ones",
            length, trained, -(-length // trained),
        )  # fmt: skip


def _reference(attempt: Attempt, init: Program, abstract: TrainState, first: TrainState | None) -> Any:
    """Returns the parameters that a policy stays near to, where it does: those of the run's first state."""
    if not attempt.config.rollouts.has_reference:
        return None
    if first is None:
        return _first_state(attempt, init, abstract)[1].params
    # A copy: the step takes the state's own arrays.
    return jax.tree.map(jnp.copy, first.params)


def _rollouts(
    attempt: Attempt, where: Any, abstract: RolloutBatch, state: TrainState, reference: Any, restored: Restored | None,
    step: Any,
) -> RolloutWriter:  # fmt: skip
    """Returns what makes the batches, its engine compiled, as far as the checkpoint was with its rollouts."""
    cfg, trainer = attempt.config, attempt.trainer
    with attempt.screen.phase("compiling the engine that writes rollouts"), attempt.sections.within("compile"):
        writer: RolloutWriter = cfg.rollouts.writer(
            trainer.model, trainer.source, where, abstract=abstract, seed=cfg.seed, params=state.params,
            state=state.state, reference=reference, step_program=step,
        )  # fmt: skip
    if restored is not None:
        writer.resume(restored.data.get("rollouts", {}))
    return writer


def _data_digest(attempt: Attempt) -> str:
    """Returns the digest of the data's rows, having read it, in phases that a person can follow."""
    source = attempt.trainer.source
    with attempt.screen.phase("reading data"):
        source.documents("train")
    with attempt.screen.phase("learning the tokenizer"):
        problem = check_vocabulary(source, attempt.config.model)
        if problem:
            raise UsageError(problem)
        digest = source.digest
    with attempt.screen.phase("reading data"):
        source.account()
    return digest


def _keep_tokenizer(attempt: Attempt) -> None:
    """Puts the tokenizer beside the config: a learned one can't be learned again from another corpus."""
    tokenizer, path = attempt.trainer.source.tokenizer, attempt.run.path / TOKENIZER
    if tokenizer is None or not attempt.run.is_primary:
        return
    if path.exists():
        check_readable(path)
    else:
        try:
            tokenizer.save(path)
        except OSError as error:
            raise unwritable(path, error) from error


def _restored(attempt: Attempt, abstract: TrainState, digest: str) -> Restored | None:
    asked = {"params": abstract.params, "state": abstract.state, "opt": abstract.opt}
    restored = attempt.checkpoints.restore(asked, step=attempt.from_step)
    if restored is None and attempt.run.is_primary:
        recorded = recorded_commits(attempt.run.path)
        if recorded:
            raise CheckpointError(_all_gone(attempt.run.path, recorded))
    if restored is not None and restored.data["digest"] != digest:
        message = (
            f"{attempt.run.place}: the data has digest {digest[:12]}, but this run was trained on "
            f"{restored.data['digest'][:12]}; the text, its tokenizer or the row order changed (the embedded corpus "
            f"differs between Python versions). Start a new run directory, or bring the old data back"
        )
        raise UsageError(message)
    if restored is not None and attempt.from_step is not None:
        # Not before all is well: until here, nothing has changed.
        aside = attempt.checkpoints.go_back(restored.step)
        attempt.journal.write("went_back", step=restored.step, set_aside=aside)
        for place in aside:
            attempt.screen.say(f"a later checkpoint is set aside: {shown(place)}")
    return restored


def _branched(attempt: Attempt, branch: Branch, abstract: TrainState, digest: str) -> Restored:
    """Returns the state of another run's checkpoint; both runs say so from now on."""
    asked = {"params": abstract.params, "state": abstract.state, "opt": abstract.opt}
    restored = branch.restored(attempt.config.checkpointer, asked)
    if restored.step >= attempt.total:
        message = (
            f"--branch-from: step {restored.step} of {branch.place} is no earlier than this run's last, "
            f"{attempt.total}, as its config's `steps` or --steps says; ask for more than {restored.step} with "
            "--steps, or branch from an earlier step"
        )
        raise UsageError(message)
    fields = branch.record(attempt.run, restored, digest, attempt.config.batch_size)
    attempt.journal.write("branched_from", **fields)
    if not fields["same_data"]:
        attempt.screen.say("the data are others than that run's: they are read from their first row")
    return restored


def _all_gone(run: Path, recorded: frozenset[int]) -> str:
    """Returns what is said where events record checkpoints and none counts."""
    folder = checkpoints_of(run)
    left = sorted(path.name for path in folder.iterdir()) if isinstance(folder, Path) and folder.is_dir() else []
    held = f"holds {', '.join(left[:8])}" if left else "is empty"
    return (
        f"the events of {shown_place(run)} record checkpoints, the newest of step {max(recorded)}, and none of them "
        f"can be used: {folder} {held}. Put them back from a backup, whole and named by their steps, or train in a new "
        f"run directory; to begin this one anew, remove {run / EVENTS}"
    )


def _state_of(restored: Restored, abstract: TrainState) -> TrainState:
    items: Mapping[str, Any] = restored.items
    step = jax.device_put(np.int32(restored.step), abstract.step.sharding)
    return TrainState(step, items["params"], items["state"], items["opt"])


def _first_state(attempt: Attempt, init: Program, abstract: TrainState) -> tuple[Origin, TrainState]:
    """Returns the state before the first update, with the parameters of another model where there is one."""
    mapping: InitFrom | None = attempt.config.init_from
    source = str(attempt.initial or "") or (mapping.source if mapping is not None else "")
    attempt.trainer.source.check_start(Path(source) if source else None)
    with attempt.screen.phase("making new parameters"), attempt.sections.within("initialise"):
        state: TrainState = init.lower().compile()()
    if not source:
        state = _with_pretrained(attempt, state, abstract, frozenset())
        return Origin("new"), _with_companions(attempt, state, abstract)
    account = None
    begun_here: Mapping[str, Any] = {}
    module: Any = attempt.trainer.model
    own = unflatten_paths(without_companion_params(flatten_paths(abstract.params), module))
    trained = without_companions(module.config).build() if companions_of(module) else module
    with attempt.screen.phase(f"reading {shown(source)}"), attempt.sections.within("restore"):
        stored, adapter = _stored_start(attempt, Path(source), trained)
        check_sound(stored, source)
        if mapping is None or not mapping.needed_for(stored.params, flatten_paths(own)):
            begun = fitted(stored, trained)
            if adapter is not None:
                begun = flatten_paths(with_adapter_factors(trained, unflatten_paths(begun), adapter.factors))
            begun_here = begun
            params = flatten_paths(state.params) | flatten_paths(place(begun, own))
            old = flatten_paths(state.state)
            kept = without_companion_params(flatten_paths(abstract.state), module)
            values = old | flatten_paths(place(stored.state, unflatten_paths(kept)))
            state = state._replace(params=unflatten_paths(params), state=unflatten_paths(values))
        else:
            new = without_companion_params(flatten_paths(state.params), module)
            begins = with_new_parts(mapping, stored, new, trained)
            account = matched(mapping, begins, new, source)
            there = {path: begins[theirs] for path, theirs in account.taken.items()}
            here = {path: leaf for path, leaf in flatten_paths(abstract.params).items() if path in there}
            begun_here = there
            taken = flatten_paths(place(there, unflatten_paths(here)))
            state = state._replace(params=unflatten_paths(flatten_paths(state.params) | taken))
    attempt.journal.write("initialised_from", path=source, **({} if account is None else account.as_json()))
    for line in () if account is None else account.lines():
        attempt.screen.say(line)
    state = _with_pretrained(attempt, state, abstract, frozenset(begun_here))
    return Origin("initialised", path=source), _with_companions(attempt, state, abstract)


def _stored_start(attempt: Attempt, source: Path, module: Module) -> tuple[StoredModel, StoredAdapter | None]:
    """Returns the model to start from; of a folder with an adapter alone that of the experiment, and the adapter."""
    if not holds_adapter_alone(source):
        return stored_model(source), None
    base = attempt.prepared.composition.source
    if base is None or attempt.config.init_from is not None:
        message = (
            f"{shown(source)} holds an adapter and no model: name the folder of its model, as in kanawa train FOLDER "
            f"--init-from {shown(source)} --modify lora, without init_from"
        )
        raise UsageError(message)
    return stored_model(base), load_adapter(source, module.config)


def _with_companions(attempt: Attempt, state: TrainState, abstract: TrainState) -> TrainState:
    """Returns the state with the frozen models of the loss: each from its folder, else as the model begins."""
    arrays = {"params": flatten_paths(state.params), "state": flatten_paths(state.state)}
    wanted = {"params": flatten_paths(abstract.params), "state": flatten_paths(abstract.state)}
    for path, companion in companions_of(attempt.trainer.model).items():
        source, top = companion.config.source, f"{path}.model."
        found: dict[str, Mapping[str, Any]] = {}
        if source:
            with attempt.screen.phase(f"reading {shown(source)}"), attempt.sections.within("restore"):
                stored = stored_model(Path(source))
                check_sound(stored, source)
                found = {"params": fitted(stored, companion.model), "state": stored.state}
            attempt.journal.write("companion_from", part=path, path=source)
        for group, leaves in wanted.items():
            here = {name.removeprefix(top): leaf for name, leaf in leaves.items() if name.startswith(top)}
            missing = [] if source else [name for name in here if name not in arrays[group]]
            if missing:
                message = (
                    f"model.{path} has no source, and the model in training has no {missing[0]} to copy; set "
                    f"model.{path}.source to a run or a folder of another library"
                )
                raise UsageError(message)
            new: Mapping[str, Any] = {name: jnp.copy(arrays[group][name]) for name in here} if not source else {}
            if source:
                new = flatten_paths(place(found[group], unflatten_paths(here)))
            arrays[group] |= {top + name: leaf for name, leaf in new.items()}
    return state._replace(params=unflatten_paths(arrays["params"]), state=unflatten_paths(arrays["state"]))


def _with_pretrained(attempt: Attempt, state: TrainState, abstract: TrainState, begun: frozenset[str]) -> TrainState:
    """Returns the state with the parts that other models hold, but for those that begin with the run's own source."""
    arrays, wanted = flatten_paths(state.params), flatten_paths(abstract.params)
    for path, part in pretrained_parts(attempt.trainer.model).items():
        source, top = part.config.source, f"{path}."
        here = {name.removeprefix(top): leaf for name, leaf in wanted.items() if name.startswith(top)}
        if any(top + name in begun for name in here):
            continue
        with attempt.screen.phase(f"reading {shown(source)}"), attempt.sections.within("restore"):
            stored = stored_model(Path(source))
            check_sound(stored, source)
            found = fitted(dataclasses.replace(stored, params=part.taken(stored.params)), part)
            arrays |= {top + name: leaf for name, leaf in flatten_paths(place(found, unflatten_paths(here))).items()}
        attempt.journal.write("part_from", part=path, path=source)
    return state._replace(params=unflatten_paths(arrays))


def _compiled(attempt: Attempt, program: Program | SplitProgram, kernels: KernelRecord) -> tuple[Any, bool]:
    """Returns the compiled step, and whether it came from the cache; kernel choices are on record before it runs."""
    with attempt.screen.phase("lowering the step"), attempt.sections.within("compile"):
        lowered = program.lower()
    kernels.add(lowered.kernels)
    _record_kernels(attempt, lowered.kernels)
    with attempt.screen.phase("compiling the step"), attempt.sections.within("compile"):
        faults.reached("in_compile")
        with counted_hits() as hits:
            compiled = lowered.compile()
    return compiled, bool(hits)


def _record_kernels(attempt: Attempt, choices: Iterable[KernelChoice]) -> None:
    """Records choices of kernels; a person hears of those that differ from before, or from what would be chosen now."""
    for choice in choices:
        attempt.journal.write("kernel_selected", **choice.as_json())
        if choice.note:
            attempt.screen.say(f"kernel {choice.kernel} for {choice.problem}: {choice.note}")
