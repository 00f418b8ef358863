"""The advice when training has diverged: which checkpoints remain, which step is good, and which command resumes."""

import shlex
from pathlib import Path

from kanawa_runtime.train.announce import shown

_MILDER = "lower the learning rate, lengthen the warm-up, or clip harder in a new run"


def advice(step: int, *, began: int, dropped: int | None, steps: list[int], run: Path) -> str:
    """Returns what follows "the loss at step N is nan; ".

    The attempt that `step` went wrong in began at step `began`; `dropped` is the save that waited for this step, and
    `steps` are those that are committed.
    """
    place = shlex.quote(shown(run))
    mend = f"{_MILDER}, which may start from this one's weights (--init-from {place})"
    if step in steps:
        # Saved, so a step from it was sound: only an evaluation that a signal had put off finds fault with it now.
        older = [kept for kept in steps if kept < step]
        back = f", or go back to an older one: kanawa train {place} --from-step {older[-1]}" if older else ""
        return (
            f"checkpoint {step} is kept, since the step after it was sound. Look at the held-out data and at what only "
            f"evaluation computes{back}"
        )
    if step == began + 1 and began in steps:
        # A sound step followed when it was saved: other versions or hardware did that, or this machine is at fault.
        older = [kept for kept in steps if kept < began]
        back = f", or go back to an older one: kanawa train {place} --from-step {older[-1]}" if older else ""
        return (
            f"nothing of this step is saved. It began with checkpoint {began}, which was sound when it was saved: run "
            f"the command again to see whether it repeats{back}. If it does, {mend}"
        )
    nor = "" if dropped is None else f", nor the state of step {dropped}, which leads to it"
    kept = f"nothing of this step is saved{nor}, and every earlier checkpoint is intact ({steps or 'none yet'}). "
    if not steps:
        return f"{kept}Unless the data or the first parameters are at fault, {_MILDER}"
    return (
        f"{kept}Step {steps[-1]} is good: the step after it was sound. To resume from it: "
        f"kanawa train {place} --from-step {steps[-1]}. It comes to the same end unless the machine was at fault: "
        f"{mend}"
    )
