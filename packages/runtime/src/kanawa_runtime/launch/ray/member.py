"""The actor on each host: starts one process of the gang and says how it ended. Dies with it, and it with the actor."""

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from kanawa_runtime.exit_codes import shell_code
from kanawa_runtime.launch.local.rank import free_port, kill_rank, start_rank
from kanawa_runtime.launch.record import job_of

_LOG_BYTES = 16_384


class Member:
    """One process of a job. Ray runs it on a host of the placement group."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job_of(job)
        self._rank: subprocess.Popen[bytes] | None = None
        self._log = Path()

    def address(self) -> str:
        """Returns where the first process of a gang can be reached by the others."""
        import ray

        return f"{ray.util.get_node_ip_address()}:{free_port()}"

    def start(self, index: int, coordinator: str, attempt: int) -> int:
        """Starts process `index`; returns its id on this host."""
        folder = Path(tempfile.mkdtemp(prefix=f"kanawa-{self._job.name}-"))
        self._log = folder / f"attempt-{attempt}-rank-{index}.log"
        self._rank = start_rank(self._job, index, coordinator, attempt, self._log)
        return self._rank.pid

    def code(self) -> int | None:
        """Returns the exit code as a shell reports it, None while the process runs."""
        returned = None if self._rank is None else self._rank.poll()
        return None if returned is None else shell_code(returned)

    def signal(self, number: int) -> None:
        """Sends the process a signal, unless it has ended."""
        if self._rank is not None and self._rank.poll() is None:
            self._rank.send_signal(number)

    def end(self) -> int:
        """Ends the process by force, with all it started; returns its code."""
        if self._rank is None:
            return 0
        kill_rank(self._rank)
        return shell_code(self._rank.returncode)

    def said(self) -> str:
        """Returns the end of what the process wrote."""
        return self._log.read_bytes()[-_LOG_BYTES:].decode(errors="replace") if self._log.is_file() else ""
