"""How long a run needs between a request to stop and being saved, measured from its own events."""

import json
import math
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kanawa_runtime.exit_codes import DONE
from kanawa_runtime.runs.events import read_kinds

#: Where nothing was measured yet. Systems allow 30 s, too little to save a large model.
UNMEASURED_SECONDS = 120
#: On top of what was measured: signals travel, disks have bad moments, processes say goodbye to each other.
MARGIN_SECONDS = 15.0
#: Never less: an interpreter under load takes seconds to leave.
LEAST_SECONDS = 30
#: Long enough for a bucket, short enough for who waits at a terminal.
_READ_SECONDS = 60.0


def measured_grace(run: str, *, asks: bool = True) -> int:
    """Returns the seconds that a run's events ask for; the default where there are none.

    Those of a run at an address are read there, unless no address may be read.
    """
    if "://" in run:
        return _measured_there(run) if asks else UNMEASURED_SECONDS
    return _measured_in(Path(run)) if run else UNMEASURED_SECONDS


def _measured_in(folder: Path) -> int:
    try:
        return grace_of(read_kinds(folder / "events.jsonl", ("checkpoint_committed", "step")))
    except OSError:
        return UNMEASURED_SECONDS


def _measured_there(address: str) -> int:
    """Reads events in a process of its own: storages import JAX, and may look for rights for minutes."""
    command = [sys.executable, "-P", "-m", __name__, address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_READ_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return UNMEASURED_SECONDS
    return int(json.loads(done.stdout)) if done.returncode == 0 else UNMEASURED_SECONDS


def grace_of(events: Iterable[dict[str, Any]]) -> int:
    """Returns the seconds of a run with these events.

    A request to stop waits for the step that is under way and for one more that proves the state sound, then for the
    whole save: an asynchronous one blocks for a moment only, but the process must stay until it is committed.
    """
    saves, steps = [], []
    for event in events:
        seconds = event.get("seconds")
        if isinstance(seconds, int | float) and math.isfinite(seconds):
            if event.get("event") == "checkpoint_committed":
                saves.append(max(float(seconds), float(event.get("blocking_seconds") or 0)))
            elif event.get("event") == "step":
                steps.append(float(seconds))
    if not saves:
        return UNMEASURED_SECONDS
    save, step = _late(saves), _late(steps) if steps else 0.0
    return max(LEAST_SECONDS, math.ceil(save + 2 * step + MARGIN_SECONDS))


def _late(values: list[float]) -> float:
    """Returns the 99th percentile, the greatest of fewer than a hundred."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)) - 1)]


def main(address: str) -> int:
    """Writes the grace of a run at an address to stdout, as JSON."""
    from kanawa.cli.output import write_json, write_message
    from kanawa.errors import KanawaError

    from kanawa_runtime.storage.mirror import readable_folder

    try:
        grace = _measured_in(readable_folder(address))
    except KanawaError as error:
        write_message(str(error))
        return error.exit_code
    write_json(grace)
    return DONE


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
