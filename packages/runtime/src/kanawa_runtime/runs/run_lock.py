"""One writer to a run directory at a time."""

import fcntl
import json
import os
import socket
import time
from pathlib import Path

from kanawa.errors import UsageError


class RunLockedError(UsageError):
    """Another process is writing to the run."""


class RunLock:
    """An advisory lock on RUN/.lock. The system drops it when the process ends, however it ends."""

    def __init__(self, path: Path, place: str = "") -> None:
        self.path = path
        self._place = place or str(path.parent)
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Takes the lock or raises RunLockedError at once, naming the holder. Raises OSError."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 4096, 0)
            os.close(descriptor)
            message = (
                f"{self._place} is being written by {_describe(holder)}; two writers would "
                "destroy each other's checkpoints. Wait for it, stop it, or use another --run "
                "directory"
            )
            raise RunLockedError(message) from error
        except OSError:
            os.close(descriptor)
            raise
        record = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(record).encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Gives the lock back; does nothing if it isn't held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _describe(holder: bytes) -> str:
    try:
        record = json.loads(holder)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["since"]))
        return f"process {record['pid']} on {record['host']} since {since}"
    except (ValueError, KeyError, TypeError):
        return "another process"
