"""What a run's events say of its checkpoints, apart from what is on disk now."""

import json
from pathlib import Path

from kanawa_runtime.storage.place import shown_place
from kanawa_runtime.train.run_directory import EVENTS, checkpoints_of


def recorded_commits(run: Path) -> frozenset[int]:
    """Returns the steps that the run's events say were committed; none where there are no events."""
    steps: set[int | None] = set()
    try:
        with (run / EVENTS).open("rb") as lines:
            for line in lines:
                # The log of a long run has millions of lines, of which a parser need see few.
                if b'"checkpoint_committed"' in line:
                    steps.add(_step(line, "checkpoint_committed"))
                elif b'"went_back"' in line and (back := _step(line, "went_back")) is not None:
                    # Later ones were set aside on purpose.
                    steps = {step for step in steps if step is not None and step <= back}
    except FileNotFoundError:
        return frozenset()
    return frozenset(step for step in steps if step is not None)


def all_gone(run: Path, recorded: frozenset[int]) -> str:
    """Returns what is said where events record checkpoints and none counts."""
    folder = checkpoints_of(run)
    left = sorted(path.name for path in folder.iterdir()) if isinstance(folder, Path) and folder.is_dir() else []
    held = f"holds {', '.join(left[:8])}" if left else "is empty"
    return (
        f"the events of {shown_place(run)} record checkpoints, the newest of step {max(recorded)}, and none of them "
        f"can be used: {folder} {held}. Put them back from a backup, whole and named by their steps, or train in a new "
        f"run directory; to begin this one anew, remove {run / EVENTS}"
    )


def _step(line: bytes, kind: str) -> int | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    is_asked = isinstance(record, dict) and record.get("event") == kind
    step = record.get("step") if is_asked else None
    return step if type(step) is int else None
