"""The directory of checkpoints: which steps count, which may go, what a crash left behind."""

import re
import shutil
from pathlib import Path

from kanawa_runtime.checkpoint.durable import sync_directory
from kanawa_runtime.checkpoint.manifest import COMMIT, is_committed

#: As `str` writes a number: `00060` and digits of other scripts are names that somebody else gave.
_STEP = re.compile(r"0|[1-9][0-9]*")
_UNFINISHED = re.compile(r"[0-9]+\.(orbax-checkpoint-tmp.*|replaced)|\.[0-9]+\..*\.partial")
_DAMAGED = ".damaged"


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
    """Removes a step, its commit file first, so that a crash half-way leaves nothing that counts."""
    folder = directory / str(step)
    # Synced before the arrays go: else a crash could leave the commit file and half of what it vouches for.
    (folder / COMMIT).unlink(missing_ok=True)
    sync_directory(folder)
    shutil.rmtree(folder, ignore_errors=True)


def remove_unfinished(directory: Path) -> list[str]:
    """Removes what interrupted saves and deletions left; returns the names."""
    removed = []
    for path in sorted(directory.iterdir()):
        half_done = is_step_name(path.name) and path.is_dir() and not is_committed(path)
        if half_done or _UNFINISHED.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path.name)
    return removed


def set_aside_damaged(directory: Path, step: int) -> Path:
    """Renames a damaged step so that it no longer counts and can be examined; keeps only the latest such."""
    for old in directory.glob(f"*{_DAMAGED}"):
        shutil.rmtree(old, ignore_errors=True)
    target = directory / f"{step}{_DAMAGED}"
    (directory / str(step)).rename(target)
    sync_directory(directory)
    return target


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
