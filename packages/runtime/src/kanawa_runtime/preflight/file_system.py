"""Whether a folder keeps the promises that checkpoints and ledgers are built on, by trying each of them.

Network file systems differ in exactly these: a rename that others see half done, an fsync that returns early, locks
that two hosts both get, appends that overwrite each other.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from kanawa.plugins import Finding

Level = Literal["ok", "warning", "error"]

_FREE_BYTES_WANTED = 5 * 10**9
_FREE_FILES_WANTED = 10_000
_MOST_FSYNC_SECONDS = 1.0
MOST_SKEW_SECONDS = 5.0
CLOCK_FIX = "synchronise it: chrony or systemd-timesyncd"
CLOCK_MEANING = "leases seem fresh or stale when they aren't, and logs of hosts don't line up"
_APPENDERS, _LINES = 2, 200
_ELSEWHERE = "put runs on another file system: --run DIR"
_APPEND = (
    "import os,sys\n"
    "path, name, lines = sys.argv[1], sys.argv[2], int(sys.argv[3])\n"
    "for i in range(lines):\n"
    "    fd = os.open(path, os.O_WRONLY | os.O_APPEND); os.write(fd, f'{name} {i}\\n'.encode()); os.close(fd)\n"
)


def findings(folder: Path) -> list[Finding]:
    """Returns one finding a promise; everything is tried in a folder of its own, which is removed again."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=".kanawa-doctor-", dir=folder))
    except OSError as error:
        message = f"{folder} can't be written to: {error.strerror or error}"
        return [Finding("error", "folder", message, _ELSEWHERE, "a run can't write its files there")]
    checks: tuple[Callable[[Path], Finding], ...] = (
        check_space, check_files, check_rename, check_exclusive, check_lock, check_append, check_fsync, check_clock
    )  # fmt: skip
    try:
        return [_tried(check, place) for check in checks]
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _tried(check: Callable[[Path], Finding], place: Path) -> Finding:
    subject = check.__name__.removeprefix("check_")
    try:
        return check(place)
    except OSError as error:
        message = f"{place.parent}: {error.strerror or error}"
        return Finding("error", subject, message, _ELSEWHERE, "the file system refuses what a run does all the time")


def judged(is_well: bool, subject: str, message: str, fix: str, meaning: str, level: Level = "warning") -> Finding:
    """Returns an "ok" finding where all is well, else one of `level` with what it means and how to mend it."""
    return Finding("ok", subject, message) if is_well else Finding(level, subject, message, fix, meaning)


def check_space(place: Path) -> Finding:
    """Returns whether there is room for checkpoints."""
    free = shutil.disk_usage(place).free
    meaning = "a checkpoint that doesn't fit is not saved; training continues and older checkpoints stay"
    message = f"{free / 1e9:.1f} GB free in {place.parent}"
    return judged(free >= _FREE_BYTES_WANTED, "disk", message, f"make room, or {_ELSEWHERE}", meaning)


def check_files(place: Path) -> Finding:
    """Returns whether more files can be made, which a full table of inodes refuses while there are bytes left."""
    limits = os.statvfs(place)
    if limits.f_files == 0:  # file systems that make inodes as they go say so
        return Finding("ok", "files", "the file system sets no limit to the number of files")
    meaning = "saves fail with 'no space left' though there are bytes"
    message = f"{limits.f_favail:,} more files can be made"
    is_well = limits.f_favail >= _FREE_FILES_WANTED
    return judged(is_well, "files", message, f"delete small files, or {_ELSEWHERE}", meaning)


def check_rename(place: Path) -> Finding:
    """Returns whether a file replaces another in one step, as a commit and a status file do."""
    old, new = place / "old", place / "new"
    new.write_text("before")
    for index in range(50):
        old.write_text(f"after {index}")
        old.replace(new)
        seen = new.read_text()
        if seen != f"after {index}" or old.exists():
            message = f"a renamed file read {seen!r}, expected 'after {index}'"
            return Finding("error", "rename", message, _ELSEWHERE, "a reader may see half a commit")
    folder, target = place / "step.partial", place / "step"
    folder.mkdir()
    (folder / "data").write_text("x")
    folder.rename(target)
    is_whole = (target / "data").exists() and not folder.exists()
    message = f"files and folders are {'' if is_whole else 'not '}renamed in one step"
    return judged(is_whole, "rename", message, _ELSEWHERE, "checkpoints are committed by such a rename", "error")


def check_exclusive(place: Path) -> Finding:
    """Returns whether a file that exists can't be created again, which decides races for a lease."""
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    os.close(os.open(place / "lease", flags))
    try:
        os.close(os.open(place / "lease", flags))
    except FileExistsError:
        return Finding("ok", "exclusive create", "a file is created by one process alone")
    meaning = "two runs could both believe that they hold the lease of one folder"
    return Finding("error", "exclusive create", "O_EXCL let a file be created twice", _ELSEWHERE, meaning)


def check_lock(place: Path) -> Finding:
    """Returns whether a lock keeps another process out."""
    message, fix = "two got the same exclusive lock", "mount it with locks that hold (Lustre: -o flock, not localflock)"
    with _opened(place / "locked") as descriptor, _opened(place / "locked") as other:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return Finding("ok", "lock", "a lock keeps others out")
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK):
                raise
            message, fix = f"flock: {error.strerror}", "mount it with locks (NFS: lockd; Lustre: -o flock)"
    meaning = "two runs in one folder would silently destroy each other's checkpoints"
    return Finding("error", "lock", message, f"{fix}, or {_ELSEWHERE}", meaning)


def check_append(place: Path) -> Finding:
    """Returns whether lines that processes append at once are all there, and whole."""
    path = place / "log"
    path.touch()
    names = [chr(ord("a") + index) for index in range(_APPENDERS)]
    words = [sys.executable, "-P", "-S", "-c", _APPEND, str(path)]
    running = [subprocess.Popen([*words, name, str(_LINES)]) for name in names]
    for process in running:
        process.wait(60)
    lines = path.read_text(errors="replace").splitlines()
    expected = {f"{name} {index}" for name in names for index in range(_LINES)}
    is_whole = set(lines) == expected and len(lines) == len(expected)
    message = f"of {len(expected)} lines appended at once, {len(expected & set(lines))} are there"
    meaning = "events and ledger of a run lose lines where two processes write"
    return judged(is_whole, "append", message, _ELSEWHERE, meaning)


def check_fsync(place: Path) -> Finding:
    """Returns whether what was written can be made durable, folders included, and how long that takes."""
    path = place / "durable"
    began = time.perf_counter()
    with _opened(path) as descriptor:
        os.write(descriptor, b"x" * 4096)
        os.fsync(descriptor)
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    except OSError as error:
        message = f"a folder can't be synchronised: {error.strerror}"
        meaning = "after a power loss a committed checkpoint may be gone; an older one is used then"
        return Finding("warning", "fsync", message, _ELSEWHERE, meaning)
    finally:
        os.close(folder)
    seconds = time.perf_counter() - began
    meaning = "every save waits that long several times, in the background"
    message = f"a file and its folder are durable after {seconds * 1e3:.1f} ms"
    return judged(seconds <= _MOST_FSYNC_SECONDS, "fsync", message, _ELSEWHERE, meaning)


def check_clock(place: Path) -> Finding:
    """Returns whether this machine's clock agrees with the one that stamps files."""
    skew = skew_seconds(place)
    message = f"this clock is {skew:+.1f} s from the file system's"
    return judged(abs(skew) <= MOST_SKEW_SECONDS, "clock", message, CLOCK_FIX, CLOCK_MEANING)


def skew_seconds(place: Path) -> float:
    """Returns this machine's time less that of the file system's server, as it stamps a file; 0 for a coarse clock."""
    path = place / f"clock.{os.getpid()}"
    before = time.time()
    path.write_text("now")
    after = time.time()
    stamped = path.stat().st_mtime
    path.unlink(missing_ok=True)
    # Kernels stamp with the time of the last tick, servers with whole seconds at worst.
    if before - 1.0 <= stamped <= after + 0.01:
        return 0.0
    return (before + after) / 2 - stamped


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
