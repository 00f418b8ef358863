"""One process of a gang on this machine: how it is started, and how nothing of it is left."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, cast

from kanawa_runtime.exit_codes import shell_code
from kanawa_runtime.launch.job import Job, chips_per_host, device_environment, joining, processes, target

_PR_SET_PDEATHSIG = 1
_END_BYTES, _MOST_UNREAD_BYTES = 16_384, 1 << 22
_LAST_WORDS_SECONDS = 2.0


class Rank:
    """Process `index` of a job, started in a session of its own.

    What it writes comes by a pipe, which no full disk closes: the end of it stays in memory, and all of it goes to the
    file `log`, as far as its disk takes it. `listen` starts to read.
    """

    def __init__(self, job: Job, index: int, coordinator: str, attempt: int, log: Path) -> None:
        command = [*job.command, *joining(job, coordinator, str(index))]
        if command[0] == "kanawa":
            # The one of this interpreter, whatever else is on PATH; and no module of the working folder in its place.
            command[:1] = [sys.executable, "-P", "-m", "kanawa.cli"]
        self.index, self.log = index, log
        self._unread, self._end = bytearray(), b""
        self._lock = threading.Lock()
        self._reader: threading.Thread | None = None
        self._process = subprocess.Popen(
            command,
            env=environment(job, index, attempt),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - threads begin later
        )
        self.pid = self._process.pid

    def listen(self) -> None:
        """Reads on a thread, once all processes are started: a fork beside threads may hang."""
        self._reader = threading.Thread(target=self._read, name=f"rank-{self.index}", daemon=True)
        self._reader.start()

    def poll(self) -> int | None:
        """Returns the exit code as a shell reports it, None while the process runs."""
        code = self._process.poll()
        return None if code is None else shell_code(code)

    def send_signal(self, number: int) -> None:
        """Sends the process a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def kill(self) -> int:
        """Ends the process and all that it started in its session, and waits for it; returns its code."""
        # Also after it has ended by itself: a loader of its own may still be there.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        code = shell_code(self._process.wait())
        self.wait_for_the_rest()
        return code

    def wait_for_the_rest(self) -> None:
        """Waits a moment for what an ended process has written last."""
        if self._reader is not None:
            self._reader.join(_LAST_WORDS_SECONDS)

    def output(self) -> bytes:
        """Returns what was written since the last call."""
        with self._lock:
            unread, self._unread = bytes(self._unread), bytearray()
        return unread

    def end(self) -> str:
        """Returns the end of all that was written."""
        return self._end.decode(errors="replace")

    def _read(self) -> None:
        pipe = cast(IO[bytes], self._process.stdout)
        with pipe, contextlib.ExitStack() as stack:
            file: IO[bytes] | None = None
            while data := os.read(pipe.fileno(), 1 << 16):
                with self._lock:
                    # Nobody may be taking it: then the newest counts.
                    self._unread = (self._unread + data)[-_MOST_UNREAD_BYTES:]
                    self._end = (self._end + data)[-_END_BYTES:]
                with contextlib.suppress(OSError):
                    file = file or stack.enter_context(self.log.open("ab", buffering=0))
                    file.write(data)


def environment(job: Job, index: int, attempt: int) -> dict[str, str]:
    """Returns the variables of a process: ours, the job's, and its share of this machine's devices."""
    wanted, count = target(job), processes(job)
    variables = {**os.environ, "KANAWA_JOB": job.name, "KANAWA_ATTEMPT": str(attempt)}
    # Later flags win: what this shell has set for one process doesn't hold for a share of it.
    ours = device_environment(job) if count > 1 else {}
    flags = f"{variables.get('XLA_FLAGS', '')} {ours.get('XLA_FLAGS', '')}".strip()
    variables |= ours | ({"XLA_FLAGS": flags} if flags else {})
    if wanted.device.visible_devices and job.processes_per_host > 1:
        share = chips_per_host(job) // job.processes_per_host
        variables[wanted.device.visible_devices] = ",".join(str(index * share + chip) for chip in range(share))
    return variables | dict(job.environment)


def free_port() -> int:
    """Returns a free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if sys.platform == "linux":
    # Loaded before the fork: a child of a fork should call no more than this one function.
    _LIBC = ctypes.CDLL(None, use_errno=True)

    def _die_with_parent() -> None:
        """Asks Linux to kill this process when its supervisor is killed, which then can't do so itself."""
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
