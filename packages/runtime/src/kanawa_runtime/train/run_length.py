"""How long a run is: the steps that its schedule spans, and how far an attempt goes."""

import dataclasses
from pathlib import Path
from typing import Any

from kanawa.composition.experiment import Composition
from kanawa.config import origin
from kanawa.errors import UsageError
from kanawa.guarded_read import UnreadableFileError, guarded_json

from kanawa_runtime.checkpoint.agreement import is_primary, of_primary
from kanawa_runtime.runs.run_directory import CONFIG, MOST_CONFIG_BYTES
from kanawa_runtime.storage.mirror import readable_folder
from kanawa_runtime.train.outcome import shown


@dataclasses.dataclass(frozen=True)
class RunLength:
    """`composition.config.steps` is what the schedule spans, `total` how far this goes, `remark` what to show."""

    composition: Composition
    total: int
    remark: str


def run_length(composition: Composition, directory: Path | str, steps: int | None) -> RunLength:
    """Returns how long the run in `directory` is; `steps` is what `--steps` asks for.

    A new run's schedule spans `--steps`. That of a run that is there stays as it is, unless `--set steps=N` spans it
    anew. Raises UsageError where `--steps` goes beyond a schedule that would span more steps otherwise. All processes
    call.
    """
    if steps is not None and steps < 1:
        message = f"--steps is {steps}, expected at least 1"
        raise UsageError(message)
    config = composition.config
    begun = of_primary(_begun_for(directory) if is_primary() else 0)
    is_set = any(change.startswith("steps=") for change in composition.changes)
    span = config.steps if is_set else begun or steps or config.steps
    if span != config.steps:
        with origin("command line", f"--steps {span}"):
            config = config.clone().set(steps=span).freeze()
        composition = dataclasses.replace(composition, config=config)
    total = steps or span
    return RunLength(composition, total, _remark(config, shown(directory), span, total))


def _begun_for(directory: Path | str) -> int:
    """Returns the steps that the schedule of a run spans; 0 where there is no run yet."""
    folder = readable_folder(directory)
    try:
        record: Any = guarded_json(folder / CONFIG, folder, most=MOST_CONFIG_BYTES)
    except (OSError, UnreadableFileError):  # opening the run says what is wrong
        return 0
    steps = record.get("steps") if isinstance(record, dict) else None
    return steps if type(steps) is int else 0


def _remark(config: Any, run: str, span: int, total: int) -> str:
    if total < span:
        return f"{total} of {span} steps: the schedule of {run} spans {span}"
    if total == span:
        return ""
    schedule = config.learner.schedule.build()
    now, longer = schedule.schedule(span), schedule.schedule(total)
    rate = float(now(span))
    if any(float(now(step)) != float(longer(step)) for step in (1, span // 4, span // 2, span - 1, span, total - 1)):
        message = (
            f"the schedule of {run} ends at step {span}: steps {span + 1} to {total} would train at the rate {rate:.3g}"
            f". Say how to go on: --set steps={total} spans the schedule over {total} steps from here on, and "
            f"--branch-from {run}@STEP --run DIR with another learner.schedule begins a run of its own there"
        )
        raise UsageError(message)
    return f"beyond the {span} steps that the schedule spans, the rate is {rate:.3g}"
