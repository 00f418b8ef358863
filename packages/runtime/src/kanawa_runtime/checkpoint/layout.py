"""The directory of checkpoints: which steps count, which may go, what a crash left behind."""

import json
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from kanawa.guarded_read import guarded_open

from kanawa_runtime.checkpoint.manifest import MANIFEST, is_committed
from kanawa_runtime.storage.durable import sync_directory

#: The log of the run that a folder of checkpoints belongs to; it lies beside the folder.
EVENTS = "events.jsonl"
#: As `str` writes a number: `00060` and digits of other scripts are names that somebody else gave.
_STEP = re.compile(r"0|[1-9][0-9]*")
_UNFINISHED = re.compile(r"[0-9]+\.(orbax-checkpoint-tmp.*|replaced|deleted)|\.[0-9]+\..*\.partial")


def committed_steps(directory: Path) -> list[int]:
    """Returns the steps that were finished, oldest first; unfinished and foreign names are ignored."""
    if not directory.is_dir():
        return []
    return sorted(int(p.name) for p in directory.iterdir() if is_step_name(p.name) and is_committed(p))


def is_step_name(name: str) -> bool:
    """Whether a folder's name is a step's number, as it is written here."""
    return _STEP.fullmatch(name) is not None


def steps_to_delete(steps: list[int], keep_last_n: int, keep_every_n_steps: int | None) -> list[int]:
    """Returns the steps outside both rules, oldest first; the newest is always kept."""
    ordered = sorted(steps)
    recent = set(ordered[-max(1, keep_last_n) :])
    return [
        step for step in ordered if step not in recent and not (keep_every_n_steps and step % keep_every_n_steps == 0)
    ]


def delete_step(directory: Path, step: int) -> None:
    """Removes a step under another name, so that a crash half-way leaves nothing that looks like a step."""
    target = directory / f"{step}.deleted"
    shutil.rmtree(target, ignore_errors=True)
    (directory / str(step)).rename(target)
    # Synced before the arrays go: else a crash could bring back the name with half of its arrays.
    sync_directory(directory)
    shutil.rmtree(target, ignore_errors=True)


def remove_unfinished(directory: Path) -> list[str]:
    """Removes what interrupted saves and deletions left, and returns the names; `lost_commits` first, lest they go."""
    half_done = [p for p in _entries(directory) if is_step_name(p.name) and p.is_dir() and not _was_committed(p)]
    for path in half_done:
        shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in half_done] + remove_leftovers(directory)


def remove_leftovers(directory: Path) -> list[str]:
    """Removes what bears the name of something unfinished, and no step; returns the names."""
    leftovers = [path for path in _entries(directory) if _UNFINISHED.fullmatch(path.name)]
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in leftovers]


def lost_commits(directory: Path, recorded: Collection[int]) -> dict[int, Path]:
    """Sets aside the steps that were committed once and have lost their commit file; returns where they are now.

    `recorded` are steps of `checkpoint_committed` events. A manifest proves the same: it is written last.
    """
    aside = {}
    for path in _entries(directory):
        if is_step_name(path.name) and path.is_dir() and not is_committed(path):
            step = int(path.name)
            if step in recorded or _was_committed(path):
                aside[step] = set_aside(directory, step, "uncommitted")
    return aside


def _was_committed(folder: Path) -> bool:
    return is_committed(folder) or (folder / MANIFEST).exists()


def _entries(directory: Path) -> list[Path]:
    """Returns what is in the directory; nothing where it is gone."""
    return sorted(directory.iterdir()) if directory.is_dir() else []


def set_aside(directory: Path, step: int, reason: str) -> Path:
    """Renames a step to `STEP.REASON`, numbered where that is taken, so that it counts no longer; returns where."""
    target, count = directory / f"{step}.{reason}", 1
    while target.exists():
        count += 1
        target = directory / f"{step}.{reason}-{count}"
    (directory / str(step)).rename(target)
    sync_directory(directory)
    return target


def set_aside_replaced(directory: Path, step: int) -> None:
    """Renames a step that is about to be saved anew; `remove_unfinished` collects it."""
    target = directory / f"{step}.replaced"
    shutil.rmtree(target, ignore_errors=True)
    (directory / str(step)).rename(target)


def recorded_commits(run: Path) -> frozenset[int]:
    """Returns the steps that the run's events say were committed; none where there are no events."""
    steps: set[int | None] = set()
    try:
        with guarded_open(run / EVENTS) as lines:
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
