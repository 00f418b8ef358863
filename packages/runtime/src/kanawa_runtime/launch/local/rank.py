"""One process of a gang on this machine: how it is started, and how nothing of it is left."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from kanawa_runtime.launch.job import Job, chips_per_host, device_environment, joining, processes, target

_PR_SET_PDEATHSIG = 1


def start_rank(job: Job, index: int, coordinator: str, attempt: int, log: Path) -> subprocess.Popen[bytes]:
    """Starts process `index` in a session of its own, its output in `log`."""
    command = [*job.command, *joining(job, coordinator, str(index))]
    if command[0] == "kanawa":
        # The one of this interpreter, whatever else is on PATH; and no module of the working folder in its place.
        command[:1] = [sys.executable, "-P", "-m", "kanawa.cli"]
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=environment(job, index, attempt),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - there are no threads
        )


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


def kill_rank(rank: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that it started in its session, and waits for it."""
    # Also after it has ended by itself: a loader of its own may still be there.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(rank.pid, signal.SIGKILL)
    rank.wait()


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
