"""How an attempt ended: for the shell, for `train --json`, and in words, with the command that comes next."""

import dataclasses
import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from kanawa.contracts import DataSource

from kanawa_runtime.exit_codes import DONE, SIGNAL_BASE, STOPPED
from kanawa_runtime.storage.place import address_of


@dataclasses.dataclass(frozen=True)
class Outcome:
    """An attempt that ended without an error.

    `kind`: "done"; "preempted" by SIGTERM or "stopped" by Ctrl-C. `saved` is where the state of `step` lies; None where
    a stop came before there was anything to save. `loss` is that of the attempt's last step, `evaluation` the record of
    the run's last evaluation in this attempt, `reason` why services ended it before its last step.
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
    reason: str = ""

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
            "reason": self.reason or None,
        }


def shown(path: Path | str) -> str:
    """Returns a path as a person would type it here: relative where it lies below the working directory."""
    text = str(path)
    if address_of(text) is not None:
        return text
    try:
        relative = os.path.relpath(text)
    except (OSError, ValueError):  # the working directory is gone, or on another drive
        return text
    return text if relative.startswith("..") else relative


def ending(
    outcome: Outcome, command: str, source: DataSource, prompt: str = "", *, generates: bool = True, draws: bool = False
) -> Iterator[str]:
    """Yields the lines of the end. `command` is what was typed, which resumes the run; of a run that is done, only
    commands that its data can serve are named, and `generate` only where its model `generates` text or `draws`.
    """
    if outcome.kind == "done":
        run = shlex.quote(shown(outcome.run))
        early = f" of {outcome.total_steps}, stopped early ({outcome.reason})" if outcome.reason else ""
        yield f"done: {outcome.step} steps{early}; {_saved(outcome)}"
        asked = "--prompt-ids 1,2,3"
        if source.tokenizer is not None:
            asked = f"--prompt {shlex.quote(prompt or 'Once upon a time')}"
        if draws:
            example = source.shown(source.row(0)) if source.tokenizer is not None else None
            text = "" if example is None else example.text
            asked = f"{shlex.quote(prompt or text)} --pictures-to pictures/" if text else "--pictures-to pictures/"
        following = [f"kanawa generate {run} {asked}"] if generates or draws else []
        following += [f"kanawa eval {run}"] if source.held_out() is not None else []
        for number, one in enumerate([*following, f"kanawa report {run}"]):
            yield f"{'      ' if number else 'next: '}{one}"
        return
    after = f"after step {outcome.step}" if outcome.step or outcome.saved else "before the first step"
    yield f"stopped by {outcome.signal} {after}; {_saved(outcome)}"
    yield f"to resume: {command}"


def already_there(step: int) -> str:
    """Returns the line for a run that has nothing left to do."""
    return f"the run has {step} steps already; ask for more with --steps"


def _saved(outcome: Outcome) -> str:
    if outcome.saved is None:
        return "nothing was saved"
    return f"saved in {shown(outcome.saved)}"


_MILDER = "lower the learning rate, lengthen the warm-up, or clip harder in a new run"


def advice(
    step: int,
    *,
    began: int,
    dropped: int | None,
    steps: list[int],
    run: Path,
    culprits: str = "",
    batches: tuple[int, int] | None = None,
) -> str:
    """Returns what follows "the loss at step N is nan; ".

    The attempt that `step` went wrong in began at step `began`; `dropped` is the save that waited for this step, and
    `steps` are those that are committed. `culprits` says which rows are at fault; `batches` are the first since the
    newest checkpoint and that of the step, from 1.
    """
    place = shlex.quote(shown(run))
    without = ""
    if batches is not None:
        span = f"{batches[1]}" if culprits or batches[0] == batches[1] else f"{batches[0]}:{batches[1]}"
        without = f"kanawa train {place} --leave-out {span}"
    mend = f"{_MILDER}, which may start from this one's weights (--init-from {place})"
    if step in steps:
        # Saved, so a step from it was sound: only an evaluation that a signal had put off finds fault with it now.
        return (
            f"checkpoint {step} is kept, since the step after it was sound. Look at the held-out data and at what only "
            f"evaluation computes{_older(place, steps, step)}"
        )
    if step == began + 1 and began in steps and not culprits:
        # A sound step followed when it was saved: other versions or hardware did that, or this machine is at fault.
        leave = f"leave out its batch ({without}), or " if without else ""
        return (
            f"nothing of this step is saved. It began with checkpoint {began}, which was sound when it was saved: run "
            f"the command again to see whether it repeats{_older(place, steps, began)}. If it does, {leave}{mend}"
        )
    nor = "" if dropped is None else f", nor the state of step {dropped}, which leads to it"
    kept = f"nothing of this step is saved{nor}, and every earlier checkpoint is intact ({steps or 'none yet'}). "
    if culprits:
        newest = f"from step {steps[-1]}, its optimizer and data position included," if steps else "from the beginning"
        return f"{kept}{culprits}. To resume {newest} without that batch: {without}"
    if not steps:
        return f"{kept}Unless the data or the first parameters are at fault, {_MILDER}"
    leave = f"To resume from it without the batches since: {without} (--set divergence.rewinds=1 does so by itself). "
    return (
        f"{kept}Step {steps[-1]} is good: the step after it was sound. {leave if without else ''}With them, "
        f"kanawa train {place} --from-step {steps[-1]} comes to the same end unless the machine was at fault: {mend}"
    )


def _older(place: str, steps: list[int], than: int) -> str:
    older = [kept for kept in steps if kept < than]
    return f", or go back to an older one: kanawa train {place} --from-step {older[-1]}" if older else ""
