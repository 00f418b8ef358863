"""The training loop: restore or start, step, evaluate, save, stop; every fact goes to the event log as it happens.

The host reads a step's numbers while the next one runs, so logging costs no device time.
"""

import dataclasses
import logging
import math
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from kanawa.composition.environment import environment
from kanawa.composition.experiment import Composition
from kanawa.contracts import Batch, CheckpointSaveError, Environment, Program, Restored
from kanawa.errors import KanawaError, UsageError
from kanawa.plugins import host

from kanawa_runtime.data.tokenizers.folder import TOKENIZER
from kanawa_runtime.train.evaluate import Evaluator, trigram_nats_per_byte
from kanawa_runtime.train.events import EventLog
from kanawa_runtime.train.placement import check_vocabulary, global_batch, local_rows
from kanawa_runtime.train.progress import Progress, progress_bar
from kanawa_runtime.train.run_directory import RunDirectory
from kanawa_runtime.train.signals import Preemption
from kanawa_runtime.train.step_report import StepReport
from kanawa_runtime.train.trainer import Trainer, TrainState

logger = logging.getLogger(__name__)

#: What `kanawa train` returns to the shell.
EXIT_DONE, EXIT_RETRY = 0, 42


class NonFiniteLossError(KanawaError):
    """The loss is NaN or infinite; the parameters of this step are never saved."""


@dataclasses.dataclass
class _Pending:
    """A step that the device may still be computing; `step` is the number of its update, from 1."""

    step: int
    report: StepReport
    local_tokens: float
    num_bytes: float | None
    started: float


class Loop:
    """One attempt at a run, from opening its directory to the last event."""

    def __init__(
        self, composition: Composition, directory: Path, *, steps: int | None = None, initial: Path | None = None
    ) -> None:
        self.composition = composition
        self.config = composition.config
        self.total = self.config.steps if steps is None else steps
        self.initial = initial
        if self.total < 1:
            message = f"--steps is {self.total}, expected at least 1"
            raise UsageError(message)
        self.trainer: Trainer = composition.workload()
        self.environment: Environment = environment(composition)
        # Last, since it takes the run's lock: an error above must not leave the run taken.
        self.run = RunDirectory.open(directory, composition.config)
        self.pending: _Pending | None = None
        self.finished = 0.0

    def execute(self) -> int:
        """Runs to `total` steps, to SIGTERM, or to an error; returns the exit code."""
        with self.run, self.environment.active():
            self.events: EventLog = self.run.events()
            self.checkpoints = self.config.checkpointer.build(
                directory=self.run.checkpoints,
                keep_last_n=self.config.checkpoints.keep_last,
                keep_every_n_steps=self.config.checkpoints.keep_every_steps,
                on_event=self._checkpoint_event,
            )
            outcome = "failed"
            try:
                self._prepare()
                outcome = self._steps()
                self.checkpoints.close()
            except BaseException as error:
                outcome = "failed" if isinstance(error, Exception) else "interrupted"
                self._drain_quietly()
                raise
            finally:
                self._event("run_ended", outcome=outcome, step=self.step)
                host().notify("kanawa_run_ended", run=self.run, event={"outcome": outcome})
        return EXIT_RETRY if outcome == "preempted" else EXIT_DONE

    # --- before the first step -------------------------------------------------------------------------------

    def _prepare(self) -> None:
        started = time.perf_counter()
        self.step = 0
        self.source = self.trainer.source
        problem = check_vocabulary(self.source, self.config.model.vocab_size)
        if problem:
            raise UsageError(problem)
        digest = self.source.digest
        programs = self.trainer.programs(self.environment)
        self.abstract_state, self.abstract_batch = programs["train_step"].abstract_args
        self._event("run_started", **self.run.description(), data_digest=digest, total_steps=self.total)
        self._keep_tokenizer()
        host().notify("kanawa_run_started", run=self.run)
        self.state = self._restored(digest)
        if self.state is None:
            self.state = self._initialised(programs["init"])
        self.step = int(self.state.step)
        lowered = programs["train_step"].lower()
        for choice in lowered.kernels:
            self._event("kernel_selected", **choice.as_json())
        self.compiled = lowered.compile()
        self.evaluator = Evaluator(self.config, programs["eval_step"])
        self.digest = digest
        self._event("prepared", step=self.step, seconds=time.perf_counter() - started)

    def _initialised(self, init: Program) -> TrainState:
        """Returns the state before the first update, with the parameters of another model where one was given."""
        state: TrainState = init.lower().compile()()
        if self.initial is None:
            return state
        from kanawa_runtime.serve.imported import fitted, place, stored_model

        found = stored_model(self.initial)
        self._event("initialised_from", path=str(self.initial))
        params = place(fitted(found, self.trainer.model), self.abstract_state.params)
        return state._replace(params=params, state=place(found.state, self.abstract_state.state))

    def _keep_tokenizer(self) -> None:
        """Puts the tokenizer beside the config: a learned one can't be learned again from another corpus."""
        tokenizer = self.source.tokenizer
        path = self.run.path / TOKENIZER
        if tokenizer is not None and self.run.is_primary and not path.exists():
            tokenizer.save(path)

    def _restored(self, digest: str) -> TrainState | None:
        abstract = {
            "params": self.abstract_state.params,
            "state": self.abstract_state.state,
            "opt": self.abstract_state.opt,
        }
        found: Restored | None = self.checkpoints.restore(abstract)
        if found is None:
            return None
        if found.data["digest"] != digest:
            message = (
                f"{self.run.path}: the data has digest {digest[:12]}, but this run was trained on "
                f"{found.data['digest'][:12]}; the text, its tokenizer or the row order changed (the embedded corpus "
                f"differs between Python versions). Start a new run directory, or bring the old data back"
            )
            raise UsageError(message)
        step = jax.device_put(np.int32(found.step), self.abstract_state.step.sharding)
        logger.info("resuming at step %d", found.step)
        return TrainState(step, found.items["params"], found.items["state"], found.items["opt"])

    # --- stepping --------------------------------------------------------------------------------------------

    def _steps(self) -> str:
        if self.step >= self.total:
            logger.info("the run has %d steps already; ask for more with --steps", self.step)
            return "done"
        rows = local_rows(self.abstract_batch)
        loader = self.config.loader.build(
            source=self.source,
            global_batch=self.config.batch_size,
            local_rows=rows,
            start_row=self.step * self.config.batch_size,
        )
        with Preemption() as preemption, progress_bar(self.total, self.step) as progress:
            self.progress: Progress = progress
            for local in loader:
                self._one(local, rows)
                if preemption.reached(self.step):
                    self._drain()
                    self._save()
                    return "preempted"
                if self.step >= self.total:
                    break
                self._between()
            self._drain()
            self._evaluate(final=True)
            self._save()
        return "done"

    def _one(self, local: Batch, rows: range) -> None:
        started = time.perf_counter()
        batch = global_batch(local, self.abstract_batch, rows)
        self.state, report = self.compiled(self.state, batch)
        tokens = float(np.sum(local.loss_weights))
        num_bytes = self.source.target_bytes(local.target_ids, local.loss_weights)
        self.step += 1
        pending = _Pending(self.step, report, tokens, num_bytes, started)
        previous, self.pending = self.pending, pending
        self._finish(previous)

    def _between(self) -> None:
        if self.step % self.config.evaluation.every_steps == 0:
            self._drain()
            self._evaluate()
        if self.step % self.config.checkpoints.every_steps == 0:
            self._drain()
            self._save()

    def _drain(self) -> None:
        previous, self.pending = self.pending, None
        self._finish(previous)

    def _drain_quietly(self) -> None:
        """Logs the last step on the way out of an error, unless that step is the error."""
        try:
            self._drain()
        except KanawaError:
            logger.debug("the last step can't be logged", exc_info=True)

    def _finish(self, pending: _Pending | None) -> None:
        """Waits for a step and logs it; raises NonFiniteLossError."""
        if pending is None:
            return
        numbers = pending.report.read()
        loss = numbers.pop("loss")
        nats, tokens = pending.report.main_loss()
        now = time.perf_counter()
        # Steps overlap on the device's queue: a step's own time starts when the one before it ended.
        seconds, self.finished = now - max(pending.started, self.finished), now
        fields: dict[str, Any] = {"step": pending.step, "loss": loss, "tokens": tokens, "seconds": seconds}
        if pending.num_bytes and pending.local_tokens:
            # A host knows the bytes of its own rows only; they stand for all.
            fields["nats_per_byte"] = nats / tokens * pending.local_tokens / pending.num_bytes
        record = self._event("step", **fields, metrics=numbers)
        self.progress.step(record)
        if not math.isfinite(loss):
            message = (
                f"the loss at step {pending.step} is {loss}; nothing of this step is saved, and every earlier "
                f"checkpoint is intact ({self.checkpoints.steps() or 'none yet'}). Lower the learning rate, lengthen "
                f"the warm-up, or clip harder in a new run, or resume this one to see whether it repeats"
            )
            raise NonFiniteLossError(message)

    # --- evaluating and saving -------------------------------------------------------------------------------

    def _evaluate(self, *, final: bool = False) -> None:
        policy = self.config.evaluation
        limit = policy.final_batches if final else policy.max_batches
        params = self.trainer.evaluated(self.state.params, self.state.opt)
        found = self.evaluator.evaluate(params, self.state.state, limit)
        if found is None:
            return
        if final and policy.trigram_baseline and self.run.is_primary:
            baseline = trigram_nats_per_byte(self.source)
            if baseline is not None:
                found["trigram_nats_per_byte"] = baseline
                logger.info("a byte-trigram table scores %.4f nats/byte on the same files", baseline)
        self.progress.evaluation(self._event("eval", step=self.step, **found))

    def _save(self) -> None:
        """Starts a save. An earlier one that failed has its own event and error line; training goes on."""
        for attempt in range(2):
            try:
                self.checkpoints.save(
                    self.step,
                    params=self.state.params,
                    state=self.state.state,
                    opt=self.state.opt,
                    data={"row": self.step * self.config.batch_size, "digest": self.digest},
                    meta=self.run.meta(),
                )
                return
            except CheckpointSaveError:
                if attempt:
                    logger.warning("training goes on without checkpoint %d", self.step)

    def _checkpoint_event(self, kind: str, fields: Any) -> None:
        record = self._event(kind, **fields)
        if kind == "checkpoint_committed":
            host().notify("kanawa_checkpoint_committed", run=self.run, event=record)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        record = self.events.write(kind, **fields)
        if kind == "step":
            host().notify("kanawa_step_ended", run=self.run, event=record)
        return record
