"""What a local job keeps in RUN/launch: the job, its state, its lock, and a folder of logs for each attempt."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kanawa.errors import KanawaError, UsageError
from kanawa.guarded_read import guarded_json
from kanawa.local_path import local_path

from kanawa_runtime.launch.client import LauncherError
from kanawa_runtime.launch.job import Job, job_of, job_record
from kanawa_runtime.launch.launcher import Status

JOB, STATE, LOCK = "job.json", "state.json", "lock"
_MOST_BYTES, _ROOM = 2**24, 8192


def folder_of(run: str | Path) -> Path:
    """Returns where a run's local job keeps its files: of one at an address, on this machine alone."""
    try:
        return local_path(run) / "launch"
    except UsageError:  # no path, so an address, or neither
        from kanawa_runtime.storage.mirror import mirror_folder  # brings JAX
        from kanawa_runtime.storage.place import run_place

        place = run_place(run)
        return (mirror_folder(place, "jobs") if isinstance(place, str) else place) / "launch"


def _place(folder: Path) -> str:
    """Returns the run of a job as a person knows it."""
    try:
        return read_job(folder).run
    except (OSError, KanawaError):
        return str(folder.parent)


def attempt_folder(folder: Path, attempt: int) -> Path:
    """Returns where an attempt's logs lie."""
    return folder / f"attempt-{attempt}"


def last_attempt(folder: Path) -> int:
    """Returns the highest attempt that has logs, 0 where there is none."""
    numbers = (path.name.removeprefix("attempt-") for path in folder.glob("attempt-*"))
    return max((int(number) for number in numbers if number.isdigit()), default=0)


def write_job(folder: Path, job: Job) -> None:
    """Keeps the job beside its logs."""
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / JOB).write_text(json.dumps(job_record(job), indent=1))


def read_job(folder: Path) -> Job:
    """Returns the job that `write_job` kept."""
    return job_of(guarded_json(folder / JOB, most=_MOST_BYTES))


def write_state(folder: Path, **facts: Any) -> None:
    """Replaces the state in one step, so that a reader never sees half of it; raises OSError."""
    # With room for later ones: a full disk takes no new file, but what lies on it can be written over.
    text = json.dumps(facts, indent=1).ljust(_ROOM)
    part = folder / f"{STATE}.part"
    try:
        part.write_text(text)
        part.replace(folder / STATE)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        with (folder / STATE).open("r+") as file:
            file.write(text)
            file.truncate()


def read_state(folder: Path) -> dict[str, Any]:
    """Returns the state; raises LauncherError where no job was started."""
    try:
        state: dict[str, Any] = guarded_json(folder / STATE, most=_MOST_BYTES)
    except FileNotFoundError:
        place = _place(folder)
        message = f"there is no job in {place}; give the run directory of one that `kanawa launch local` started"
        raise LauncherError(message) from None
    return state


def status(folder: Path) -> Status:
    """Returns where the job stands; one whose supervisor has left no last word was killed."""
    state = read_state(folder)
    status = Status(
        state["state"], state["restarts"], state.get("exit_code"), state.get("detail", ""), state.get("stops", 0)
    )
    if not status.ended and not is_supervised(folder):
        gone = "its supervisor was killed, or its disk took no last word; start it again with the same command"
        return Status("failed", status.restarts, None, gone, status.stops)
    return status


def is_supervised(folder: Path) -> bool:
    """Returns whether a supervisor holds the job."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)  # which a read-only disk allows too
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def check_free(folder: Path) -> None:
    """Raises LauncherError where another supervisor holds the job."""
    if is_supervised(folder):
        raise _taken(folder)


def _taken(folder: Path) -> LauncherError:
    place = _place(folder)
    message = (
        f"{place} is being run by another `kanawa launch local`; watch it with `kanawa launch local "
        f"--status {place}`, or stop it with --cancel"
    )
    return LauncherError(message)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Holds the job while inside; raises LauncherError where another supervisor does."""
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _taken(folder) from None
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Inside, a disk that refuses before anything was started ends as it does in the processes themselves."""
    try:
        yield
    except OSError as error:
        from kanawa_runtime.runs.run_directory import unwritable  # heavy, and only for its words

        raise unwritable(folder.parent, error) from error
