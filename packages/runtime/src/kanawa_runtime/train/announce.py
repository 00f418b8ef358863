"""The lines shown when a run ends: what was saved, and which command comes next."""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from kanawa.contracts import DataSource

from kanawa_runtime.storage.place import address_of
from kanawa_runtime.train.outcome import Outcome


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


def ending(outcome: Outcome, command: str, source: DataSource, prompt: str = "") -> Iterator[str]:
    """Yields the lines of the end. `command` is what was typed, which resumes the run; of a run that is done, only
    commands that its data can serve are named.
    """
    if outcome.kind == "done":
        run = shlex.quote(shown(outcome.run))
        yield f"done: {outcome.step} steps; {_saved(outcome)}"
        if source.tokenizer is not None:
            yield f"next: kanawa generate {run} --prompt {shlex.quote(prompt or 'Once upon a time')}"
        else:
            yield f"next: kanawa generate {run} --prompt-ids 1,2,3"
        if source.held_out() is not None:
            yield f"      kanawa eval {run}"
        yield f"      kanawa report {run}"
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
