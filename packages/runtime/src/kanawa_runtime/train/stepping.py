"""Steps on the device, and their numbers on the host.

The host reads a step's numbers while the next one runs, so logging costs no device time.

Whether a state can be gone on from is known for certain only by going on. Arrays that are finite may still give a loss
that is not, so a save is provisional: it counts once the next step, which runs anyway, has a finite loss and leaves a
sound state. A resumed run repeats that very step, so what counts can always be gone on from. The last state of an
attempt is tried by a step whose result is thrown away: the same program on the next batch, so that nothing is compiled
for it, and it runs while the state is being written.
"""

import contextlib
import dataclasses
import math
import time
from typing import Any

import numpy as np
from kanawa.contracts import Batch, CheckpointSaveError
from kanawa.errors import KanawaError

from kanawa_runtime import faults
from kanawa_runtime.train.advice import advice
from kanawa_runtime.train.attempt import Attempt
from kanawa_runtime.train.placement import global_batch, local_rows
from kanawa_runtime.train.start import Started
from kanawa_runtime.train.step_report import StepReport


class DivergedError(KanawaError):
    """Training has left the numbers that can be computed with; what led there is never saved."""


class NonFiniteLossError(DivergedError):
    """The loss is NaN or infinite."""


class NonFiniteStateError(DivergedError):
    """An update made a parameter, the optimizer's state or the model's NaN, infinite or far too large."""


@dataclasses.dataclass(frozen=True)
class _Pending:
    """A step that the device may still be computing; `step` is the number of its update, from 1."""

    step: int
    report: StepReport
    local_tokens: float
    num_bytes: float | None
    started: float
    is_trial: bool = False


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
        self._origin = started.origin
        self._pending: _Pending | None = None
        self._batch: Batch | None = None
        self._provisional: int | None = None
        self._finished = 0.0

    @property
    def has_stepped(self) -> bool:
        """Whether this attempt has taken a step."""
        return self.step > self._origin.step

    @property
    def is_computing(self) -> bool:
        """Whether the device has not finished the last step yet."""
        return self._pending is not None and not self._pending.report.values.is_ready()

    def take(self, local: Batch) -> None:
        """Starts a step on this process's rows and finishes the one before."""
        started = time.perf_counter()
        self._batch = global_batch(local, self._abstract_batch, self.rows)
        faults.reached("in_step")
        self.state, report = self._program(self.state, self._batch)
        faults.reached("in_collective")
        tokens = float(np.sum(local.loss_weights))
        num_bytes = self._source.target_bytes(local.target_ids, local.loss_weights)
        self.step += 1
        previous, self._pending = self._pending, _Pending(self.step, report, tokens, num_bytes, started)
        self._finish(previous)

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
        if self._provisional is None or (local is None and self._batch is None):
            return
        batch = self._batch if local is None else global_batch(local, self._abstract_batch, self.rows)
        self.state, report = self._program(self.state, batch)
        self._finish(_Pending(self.step + 1, report, 0.0, None, 0.0, is_trial=True))

    def check_evaluation(self, loss: float) -> None:
        """Raises NonFiniteLossError where the held-out loss of the state is NaN, although all its arrays are finite."""
        if math.isnan(loss):
            message = f"the held-out loss after step {self.step} is {loss}; {self._advice(self.step)}"
            raise NonFiniteLossError(message)

    def _finish(self, pending: _Pending | None) -> None:
        """Waits for a step and records it, unless it is a trial; raises DivergedError."""
        if pending is None:
            return
        numbers = pending.report.read()
        loss = numbers.pop("loss")
        if not pending.is_trial:
            self._record(pending, loss, numbers)
        self._check(pending, loss)
        if self._provisional is not None and pending.step > self._provisional:
            step, self._provisional = self._provisional, None
            try:
                self._attempt.checkpoints.commit(step)
            except CheckpointSaveError as error:
                self._attempt.screen.say(f"training goes on without checkpoint {step}: {error}")

    def _record(self, pending: _Pending, loss: float, numbers: dict[str, float]) -> None:
        nats, tokens = pending.report.main_loss()
        now = time.perf_counter()
        # Steps overlap on the device's queue: a step's own time starts when the one before it ended.
        seconds, self._finished = now - max(pending.started, self._finished), now
        fields: dict[str, Any] = {"step": pending.step, "loss": loss, "tokens": tokens, "seconds": seconds}
        if pending.num_bytes and pending.local_tokens:
            # A host knows the bytes of its own rows only; they stand for all.
            fields["nats_per_byte"] = nats / tokens * pending.local_tokens / pending.num_bytes
        self.last_loss = loss
        self._attempt.screen.step(self._attempt.journal.write("step", **fields, metrics=numbers))

    def _check(self, pending: _Pending, loss: float) -> None:
        """Raises DivergedError where the loss is not finite, or the step's result can't be trained on."""
        problem = pending.report.soundness.problem() if pending.report.soundness is not None else ""
        if not math.isfinite(loss):
            message = f"the loss at step {pending.step} is {loss}; {self._advice(pending.step)}"
            raise NonFiniteLossError(message)
        if problem:
            message = (
                f"the update of step {pending.step} made these non-finite, or too large to compute with: {problem}; "
                f"{self._advice(pending.step)}"
            )
            raise NonFiniteStateError(message)

    def _advice(self, step: int) -> str:
        """Returns what is kept and what to do, after `step` went wrong."""
        # What is being saved counts among what is kept, once it is there; a save that fails has an event of its own.
        # One that waited for this step is dropped.
        with contextlib.suppress(CheckpointSaveError):
            self._attempt.checkpoints.wait()
        dropped, self._provisional = self._provisional, None
        return advice(
            step,
            began=self._origin.step,
            dropped=dropped,
            steps=self._attempt.checkpoints.steps(),
            run=self._attempt.run.path,
        )
