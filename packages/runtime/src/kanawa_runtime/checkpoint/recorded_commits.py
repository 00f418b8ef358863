"""Which steps a run's events say were committed, whatever is on disk now."""

import json
from pathlib import Path

#: The log of the run that a folder of checkpoints belongs to; it lies beside the folder.
EVENTS = "events.jsonl"


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


def _step(line: bytes, kind: str) -> int | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    is_asked = isinstance(record, dict) and record.get("event") == kind
    step = record.get("step") if is_asked else None
    return step if type(step) is int else None
