"""Steps on the device, and their numbers on the host.

The host reads a step's numbers while the next one runs, so logging costs no device time.

Whether training can continue from a state is known only by trying. Finite arrays may still give a loss that is not, so
a save is provisional: it counts once the next step, which runs anyway, has a finite loss and leaves a sound state. A
resumed run repeats that very step, so training can always continue from a committed one. The last state of an attempt
is tried by a step whose result is thrown away: the same program on the next batch, so that nothing is compiled for it,
and it runs while the state is being written.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any

import jax
from kanawa.contracts import Batch, CheckpointSaveError, PreferenceBatch
from kanawa.errors import KanawaError, UsageError

from kanawa_runtime import faults
from kanawa_runtime.exit_codes import STOPPED
from kanawa_runtime.train.attempt import Attempt
from kanawa_runtime.train.batches import (
    LeftOut,
    bytes_of,
    global_batch,
    local_rows,
    read_left_out,
    unit_of,
    weight_of,
    write_left_out,
)
from kanawa_runtime.train.branch import row_offset
from kanawa_runtime.train.culprit import culprits
from kanawa_runtime.train.outcome import advice
from kanawa_runtime.train.replicas import ReplicaCheck
from kanawa_runtime.train.start import Started
from kanawa_runtime.train.step_report import StepReport
from kanawa_runtime.train.step_watch import Idleness, Pacer, Spikes


class DivergedError(KanawaError):
    """Training has left the numbers that can be computed with; what led there is never saved."""


class NonFiniteLossError(DivergedError):
    """The loss is NaN or infinite."""


class NonFiniteStateError(DivergedError):
    """An update made a parameter, the optimizer's state or the model's NaN, infinite or far too large."""


class RewoundError(DivergedError):
    """The run goes back: restarted, it resumes from its newest checkpoint, without the batches that led here."""

    exit_code = STOPPED


@dataclasses.dataclass(frozen=True)
class _Pending:
    """A step that the device may still be computing; `step` is the number of its update, from 1."""

    step: int
    report: StepReport
    local_tokens: float
    num_bytes: float | None
    started: float
    is_trial: bool = False
    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Stepper:
    """Takes batches, keeps the state after each, and writes each step's record one step later."""

    def __init__(self, attempt: Attempt, started: Started) -> None:
        self.state = started.state
        self.step = started.origin.step
        self.last_loss: float | None = None
        self.rows = local_rows(started.abstract_batch)
        self._attempt = attempt
        self._program = started.step_program
        self._abstract_batch = started.abstract_batch
        self._source = attempt.trainer.source
        self._rollouts, self._tasks = started.rollouts, started.tasks
        self._origin = started.origin
        self._pending: _Pending | None = None
        self._batch: Batch | None = None
        self._provisional: int | None = None
        self._finished = 0.0
        self._evaluator = started.evaluator
        self._row_offset = row_offset(attempt.run.path)
        self.left_out = read_left_out(attempt.run.path)
        if attempt.leave_out is not None:
            self.left_out = self._leaving_out(*attempt.leave_out)
        divergence = attempt.config.divergence
        self._rewinds = divergence.rewinds - self.left_out.returns
        self._return: RewoundError | None = None
        self._spikes = Spikes(divergence.spike_factor, divergence.spike_window)
        self._read = time.perf_counter()
        self._idleness = Idleness()
        self._pacer = _pacer(attempt)
        self._replicas = _replica_check(attempt, started)

    def _leaving_out(self, first: int, last: int) -> LeftOut:
        """Leaves out batches from now on; raises UsageError for those that the state has learned from."""
        before, after, step = self.left_out, self.left_out.with_batches(first, last), self.step
        if step and before.batch_of(step - 1) != after.batch_of(step - 1):
            back = next(earlier for earlier in range(step) if before.batch_of(earlier) != after.batch_of(earlier))
            message = (
                f"--leave-out: batch {max(first, before.batch_of(back)) + 1} was learned from before step {step}; go "
                f"back in the same command, with --from-step {back} or an earlier step that is saved"
            )
            raise UsageError(message)
        if after.ranges != before.ranges:
            write_left_out(self._attempt.run.path, after)
            self._attempt.journal.write("left_out", batches=after.ranges)
            self._attempt.screen.say(f"batches {first + 1} to {last + 1} are left out from now on")
        return after

    @property
    def has_stepped(self) -> bool:
        """Whether this attempt has taken a step."""
        return self.step > self._origin.step

    @property
    def next_row(self) -> int:
        """The first row of the next batch."""
        return self._row_after(self.step)

    def _row_after(self, step: int) -> int:
        return self._first_row(self.left_out.batch_of(step))

    def _first_row(self, batch: int) -> int:
        size: int = self._attempt.config.batch_size
        return self._row_offset + batch * size

    @property
    def is_computing(self) -> bool:
        """Whether the device has not finished the last step yet."""
        return self._pending is not None and not self._pending.report.is_ready()

    def take(self, rows: Batch) -> None:
        """Starts a step on this process's rows and finishes the one before."""
        started = time.perf_counter()
        figures: Mapping[str, Any] = {}
        local: Any = rows
        if self._rollouts is not None:
            # What the policy is now, it is after the last update, which must have been sound.
            self.drain()
            local, figures = self._rollouts.batch(self.state.params, self.state.state, self.step, self._row_after)
        self._batch = global_batch(local, self._abstract_batch, self.rows)
        faults.reached("in_step")
        self.state, report = self._stepped()
        faults.reached("in_collective")
        tokens, num_bytes = weight_of(local), bytes_of(self._source, local)
        if isinstance(local, PreferenceBatch):
            # The loss is a mean over pairs, so that its weight doesn't count tokens; this host's stand for all.
            figures = {"tokens": tokens * len(self._abstract_batch.input_ids) / len(local.input_ids)}
        first = self.next_row
        self.step += 1
        self._record_changes(first)
        taken = _Pending(self.step, report, tokens, num_bytes, started, figures=figures)
        previous, self._pending = self._pending, taken
        self._finish(previous)

    def _record_changes(self, first: int) -> None:
        """Records what changes in the data within the batch that begins with a row."""
        for change in self._source.changes(first, first + self._attempt.config.batch_size):
            self._attempt.journal.write("data_changed", step=self.step, **change)
            weights = ", ".join(f"{name} {weight:.3g}" for name, weight in change.get("weights", {}).items())
            self._attempt.screen.say(f"step {self.step}: from row {change['row']} on, weights are {weights}")

    def _stepped(self) -> Any:
        """Returns the next state and its report; where it is time to, replicas are compared meanwhile."""
        step, check = self.step + 1, self._replicas
        if check is None or not check.is_due(step):
            return self._program(self.state, self._batch)
        with self._attempt.sections.within("check"):
            return check.take(self.state, self._batch, step)

    def drain(self) -> None:
        """Waits for the last step and records it; afterwards the state is known to be sound. Raises DivergedError."""
        previous, self._pending = self._pending, None
        self._finish(previous)

    def saved(self) -> None:
        """A provisional save of this step has begun: the next step decides on it."""
        self._provisional = self.step

    def try_on(self, local: Batch | None) -> None:
        """Decides on the last save by a step on the next batch, or the last one where there is none; ends the state.

        Raises DivergedError, and whatever else a step raises.
        """
        if self._provisional is None or ((local is None or self._rollouts) and self._batch is None):
            return
        # Rollouts would be made for it; what was trained on last tries the state as well.
        reuses = local is None or self._rollouts is not None
        batch: Any = self._batch
        if local is not None and not reuses:
            batch = global_batch(local, self._abstract_batch, self.rows)
        self.state, report = self._program(self.state, batch)
        self._finish(_Pending(self.step + 1, report, 0.0, None, 0.0, is_trial=True))

    def unrepeatable(self) -> dict[str, Any]:
        """Returns what a save keeps besides the row, as JSON: rollouts of parameters that are gone."""
        return {} if self._rollouts is None else {"rollouts": self._rollouts.saved(self.step)}

    def close(self) -> None:
        """Ends what writes rollouts, and what answers tasks."""
        for writer in (self._rollouts, self._tasks):
            if writer is not None:
                writer.close()

    def check_evaluation(self, loss: float) -> None:
        """Raises NonFiniteLossError where the held-out loss of the state is NaN, although all its arrays are finite."""
        if math.isnan(loss):
            message = f"the held-out loss after step {self.step} is {loss}; {self._advice(self.step, by_batch=False)}"
            raise NonFiniteLossError(message)

    def _finish(self, pending: _Pending | None) -> None:
        """Waits for a step and records it, unless it is a trial; raises DivergedError."""
        if pending is None:
            return
        reading, was_done = time.perf_counter(), pending.report.is_ready()
        numbers = pending.report.read()
        own_seconds, self._read = reading - self._read, time.perf_counter()
        loss = numbers.pop("loss")
        if not pending.is_trial:
            seconds = self._record(pending, loss, numbers)
            idle = self._idleness.took(was_done=was_done, step_seconds=seconds)
            if idle is not None:
                self._attempt.journal.write("device_idle", step=pending.step, share=idle, step_seconds=seconds)
                self._attempt.screen.say(
                    f"the device waits for this process in {idle:.0%} of the steps: --profile shows what it does"
                )
            if self._pacer is not None:
                self._pacer.took(pending.step, own_seconds, seconds)
        self._check(pending, loss, numbers.get("total_loss", loss))
        if self._provisional is not None and pending.step > self._provisional:
            step, self._provisional = self._provisional, None
            try:
                self._attempt.checkpoints.commit(step)
            except CheckpointSaveError as error:
                self._attempt.screen.say(f"training continues without checkpoint {step}: {error}")

    def _record(self, pending: _Pending, loss: float, numbers: dict[str, float]) -> float:
        """Writes the record of a step; returns its seconds."""
        nats, tokens = pending.report.main_loss()
        now = time.perf_counter()
        # Steps overlap on the device's queue: a step's own time starts when the one before it ended.
        seconds, self._finished = now - max(pending.started, self._finished), now
        fields: dict[str, Any] = {
            "step": pending.step,
            "loss": loss,
            "tokens": tokens,
            "seconds": seconds,
            **unit_of(self._source),
            **pending.report.by_source(self._source.source_names),
            **{name: value for name, value in pending.figures.items() if name != "completions"},
        }
        if pending.report.helpers:
            fields["loss_terms"] = list(pending.report.helpers)
        if pending.num_bytes and pending.local_tokens:
            # A host knows the bytes of its own rows only; they stand for all.
            fields["nats_per_byte"] = nats / tokens * pending.local_tokens / pending.num_bytes
        self.last_loss = loss
        self._attempt.screen.step(self._attempt.journal.write("step", **fields, metrics=numbers))
        if pending.figures.get("completions"):
            self._attempt.journal.write("completions", step=pending.step, rows=pending.figures["completions"])
        return seconds

    def _check(self, pending: _Pending, primary: float, total: float) -> None:
        """Raises DivergedError where a loss is not finite, or the step's result can't be trained on."""
        loss = primary if math.isfinite(total) else total
        problem = pending.report.soundness.problem() if pending.report.soundness is not None else ""
        if self._rewinds > 0 and (problem or not math.isfinite(loss)):
            spoilt = f"the update of step {pending.step} spoilt {problem}"
            self._rewind(pending.step, spoilt if problem else f"the loss at step {pending.step} is {loss}")
        if not math.isfinite(loss):
            message = f"the loss at step {pending.step} is {loss}; {self._advice(pending.step)}"
            raise NonFiniteLossError(message)
        if problem:
            message = (
                f"the update of step {pending.step} made these non-finite, or too large to compute with: {problem}; "
                f"{self._advice(pending.step)}"
            )
            raise NonFiniteStateError(message)
        limit = None if pending.is_trial else self._spikes.take(loss)
        if limit is not None:
            self._attempt.journal.write("loss_spike", step=pending.step, loss=loss, limit=limit)
            what = f"the loss at step {pending.step}, {loss:.4g}, is a spike, above {limit:.4g}"
            self._attempt.screen.say(what)
            if self._rewinds > 0:
                self._rewind(pending.step, what)

    def _rewind(self, step: int, why: str) -> None:
        """Leaves out the batches since the newest checkpoint from now on; raises RewoundError."""
        if self._return is not None:
            # A step that was already under way: it began from what is being left, and leaves out no batch of its own.
            raise self._return
        self._wait_for_the_save()
        self._provisional = None
        back = self._attempt.checkpoints.latest() or 0
        left_out = self.left_out.with_steps(back, step)
        write_left_out(self._attempt.run.path, left_out)
        self._attempt.journal.write("rewound", step=step, back_to=back, batches=left_out.ranges)
        message = (
            f"{why}. The run goes back to step {back} and leaves out the batches of steps {back + 1} to {step} "
            f"({self._rewinds - 1} more such returns are allowed by divergence.rewinds). Start it again with the same "
            "command"
        )
        self._return = RewoundError(message)
        raise self._return

    def _wait_for_the_save(self) -> None:
        """Returns when none is under way; one that failed has an event of its own."""
        # In its own section: a large save takes longer than any step may.
        with self._attempt.sections.within("save"), contextlib.suppress(CheckpointSaveError):
            self._attempt.checkpoints.wait()

    def _advice(self, step: int, *, by_batch: bool = True) -> str:
        """Returns the checkpoints that remain and what to do, after `step` failed; `by_batch` if its batch may have."""
        # What is being saved counts among what is kept, once it is there; a save that fails has an event of its own.
        # One that waited for this step is dropped.
        self._wait_for_the_save()
        dropped, self._provisional = self._provisional, None
        # Their memory is for the parameters of a checkpoint, with which rows are tried.
        del self.state
        steps, number = self._attempt.checkpoints.steps(), self.left_out.batch_of(step - 1)
        return advice(
            step,
            began=self._origin.step,
            dropped=dropped,
            steps=steps,
            run=self._attempt.run.path,
            culprits=culprits(self._attempt, self._evaluator, number, self._first_row(number)) if by_batch else "",
            batches=(self.left_out.batch_of(steps[-1] if steps else 0) + 1, number + 1) if by_batch else None,
        )


def _pacer(attempt: Attempt) -> Pacer | None:
    """Returns what looks for slow processes; None for a run of one."""
    if jax.process_count() == 1:
        return None

    def report(fields: Mapping[str, Any]) -> None:
        attempt.journal.write("straggler", **fields)
        own, usual = fields["own_seconds"], fields["median_seconds"]
        attempt.screen.say(f"rank {fields['rank']} is slow: {own:.3g} s a step of its own, others {usual:.3g} s")

    health = attempt.config.health
    return Pacer(health.pace_window, health.slow_share, attempt.run.attempt, report)


def _replica_check(attempt: Attempt, started: Started) -> ReplicaCheck | None:
    """Returns what compares replicas, where the run asks for it."""
    every = attempt.config.health.check_replicas_every
    if every is None:
        return None

    def report(fields: Mapping[str, Any]) -> None:
        attempt.journal.write("replicas_differ", **fields)
        ranks = ", ".join(map(str, fields["ranks"]))
        attempt.screen.say(f"step {fields['step']}: replicas differ ({fields['verdict']}): rank {ranks}")

    def go_back(step: int) -> list[str]:
        aside = attempt.checkpoints.go_back(step)
        attempt.journal.write("went_back", step=step, set_aside=aside)
        return aside

    return ReplicaCheck(started.step_program, every, report, go_back, started.origin.step)
