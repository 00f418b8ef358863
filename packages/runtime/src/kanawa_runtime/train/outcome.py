"""How an attempt ended, for the shell, for `train --json` and for people."""

import dataclasses
import signal
from typing import Any, Literal

from kanawa_runtime.exit_codes import DONE, SIGNAL_BASE, STOPPED


@dataclasses.dataclass(frozen=True)
class Outcome:
    """An attempt that ended without an error.

    `kind`: "done"; "preempted" by SIGTERM or "stopped" by Ctrl-C. `saved` is where the state of `step` lies; None where
    a stop came before there was anything to save. `loss` is that of the attempt's last step, `evaluation` the record of
    the run's last evaluation in this attempt.
    """

    kind: Literal["done", "preempted", "stopped"]
    run: str
    step: int
    total_steps: int
    start_step: int = 0
    saved: str | None = None
    signal: str = ""
    loss: float | None = None
    evaluation: dict[str, Any] | None = None

    @property
    def exit_code(self) -> int:
        """0 when done; 42 after a stop that lost nothing; as shells report a signal where there was nothing to save."""
        if self.kind == "done":
            return DONE
        if self.saved is not None:
            return STOPPED
        return SIGNAL_BASE + (signal.SIGTERM if self.kind == "preempted" else signal.SIGINT)

    def as_json(self) -> dict[str, Any]:
        """Returns the object that `train --json` writes; keys are added, never renamed."""
        evaluation = self.evaluation or {}
        return {
            "run": self.run,
            "outcome": self.kind,
            "exit_code": self.exit_code,
            "start_step": self.start_step,
            "step": self.step,
            "total_steps": self.total_steps,
            "checkpoint": self.saved,
            "loss": self.loss,
            "eval_loss": evaluation.get("loss"),
            "eval_nats_per_byte": evaluation.get("nats_per_byte"),
            "signal": self.signal or None,
        }
