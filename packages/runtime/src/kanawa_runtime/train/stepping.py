"""Steps on the device, and their numbers on the host.

The host reads a step's numbers while the next one runs, so logging costs no device time.
"""

import contextlib
import dataclasses
import math
import time
from typing import Any

import numpy as np
from kanawa.contracts import Batch, CheckpointSaveError
from kanawa.errors import KanawaError

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
        self._pending: _Pending | None = None
        self._finished = 0.0

    def take(self, local: Batch) -> None:
        """Starts a step on this process's rows and finishes the one before."""
        started = time.perf_counter()
        batch = global_batch(local, self._abstract_batch, self.rows)
        self.state, report = self._program(self.state, batch)
        tokens = float(np.sum(local.loss_weights))
        num_bytes = self._source.target_bytes(local.target_ids, local.loss_weights)
        self.step += 1
        previous, self._pending = self._pending, _Pending(self.step, report, tokens, num_bytes, started)
        self._finish(previous)

    def drain(self) -> None:
        """Waits for the last step and records it; afterwards the state is known to be sound. Raises DivergedError."""
        previous, self._pending = self._pending, None
        self._finish(previous)

    def check_evaluation(self, loss: float) -> None:
        """Raises NonFiniteLossError where the held-out loss of the state is NaN, although all its arrays are finite."""
        if math.isnan(loss):
            message = f"the held-out loss after step {self.step} is {loss}; {self._advice(self.step)}"
            raise NonFiniteLossError(message)

    def _finish(self, pending: _Pending | None) -> None:
        """Waits for a step and records it; raises DivergedError."""
        if pending is None:
            return
        numbers = pending.report.read()
        loss = numbers.pop("loss")
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
        with contextlib.suppress(CheckpointSaveError):
            self._attempt.checkpoints.wait()
        steps = self._attempt.checkpoints.steps()
        mend = "Lower the learning rate, lengthen the warm-up, or clip harder in a new run"
        if steps and steps[-1] == step - 1:
            # Its arrays are finite, which was checked; but this loss is the first that was computed with them.
            older = f" Older ones are {steps[:-1]}: --from-step {steps[-2]} goes on from there." if steps[1:] else ""
            return (
                f"nothing of this step is saved. Checkpoint {steps[-1]} holds the parameters that this step began "
                f"with: resume it to see whether it repeats.{older} {mend}"
            )
        return (
            f"nothing of this step is saved, and every earlier checkpoint is intact ({steps or 'none yet'}). "
            f"{mend}, or resume this one to see whether it repeats"
        )
