"""Keeps a gang going: starts all its processes, and all of them again when one is lost. Never imports JAX.

A process that is lost takes the others with it: they notice within moments and end, or hang, and are ended here after
`settle_seconds`. What their codes mean, the table in `exit_codes` says.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from kanawa_runtime.exit_codes import STOPPED, gang_code, shell_code, verdict
from kanawa_runtime.launch.job import Job, processes
from kanawa_runtime.launch.local.rank import free_port, kill_rank, start_rank
from kanawa_runtime.launch.local.state import attempt_folder, last_attempt, write_state
from kanawa_runtime.launch.restarts import Restarts

_POLL_SECONDS = 0.05


class Supervisor:
    """Runs a job's attempts, one after the other, in `folder`.

    `tell` takes lines for a person, `show` the output of process 0 as it comes. `settle_seconds` is what the rest of a
    gang gets to end by itself, `backoff_seconds` the first delay before another attempt; each further one doubles it
    up to `most_backoff_seconds`.
    """

    def __init__(
        self,
        job: Job,
        folder: Path,
        tell: Callable[[str], None],
        show: Callable[[bytes], None] = lambda output: None,
        *,
        settle_seconds: float = 30.0,
        backoff_seconds: float = 1.0,
        most_backoff_seconds: float = 60.0,
    ) -> None:
        self.job = job
        self.folder = folder
        self.tell = tell
        self.show = show
        self.settle_seconds = settle_seconds
        self.restarts = Restarts(job.retries, backoff_seconds, most_backoff_seconds)
        self.attempts: list[dict[str, Any]] = []
        self._signals: list[int] = []
        self._shown = 0

    def run(self) -> int:
        """Returns the gang's exit code once it is done, has failed for good, was stopped, or used up its restarts."""
        with self._listening():
            return self._ended(self._attempts())

    def _attempts(self) -> int:
        while True:
            began = time.monotonic()
            codes = self._attempt()
            code = gang_code(codes)
            if self._signals:
                return code
            delay = self.restarts.after(codes, time.monotonic() - began)
            if delay is None:
                if verdict(code) == "retry":
                    self.tell(f"exit codes {_listed(codes)}: no restarts are left of {self.job.retries}")
                return code
            reason = f"exit codes {_listed(codes)}: starting all of them again in {delay:.0f} s"
            self.tell(f"{reason}, {self.restarts.last(codes)}")
            self._note("restarting")
            if self._wait(delay):
                return STOPPED

    # --- one attempt -----------------------------------------------------------------------------------------

    def _attempt(self) -> list[int]:
        """Runs all processes to their end and returns their codes; no process remains in any case."""
        attempt = last_attempt(self.folder) + 1
        logs = attempt_folder(self.folder, attempt)
        logs.mkdir(parents=True)
        coordinator = f"127.0.0.1:{free_port()}"
        self._shown = 0
        ranks: list[subprocess.Popen[bytes]] = []
        record: dict[str, Any] = {"attempt": attempt, "started": time.time()}
        self.attempts.append(record)
        try:
            for index in range(processes(self.job)):
                ranks.append(start_rank(self.job, index, coordinator, attempt, logs / f"rank-{index}.log"))
            self._note("running", pids=[rank.pid for rank in ranks])
            self._see_through(ranks, logs / "rank-0.log")
        finally:
            for rank in ranks:
                kill_rank(rank)
        codes = [shell_code(rank.returncode) for rank in ranks]
        record |= {"ended": time.time(), "exit_codes": codes, "verdict": verdict(gang_code(codes))}
        return codes

    def _see_through(self, ranks: list[subprocess.Popen[bytes]], shown: Path) -> None:
        """Returns when all have ended, or the time of those that are left is over."""
        forwarded, deadline = 0, float("inf")
        while any(rank.poll() is None for rank in ranks):
            self._show(shown)
            if len(self._signals) > forwarded:
                forwarded = len(self._signals)
                if forwarded > 1 and self._signals[-1] == signal.SIGINT:
                    return  # a second Ctrl-C: at once
                deadline = min(deadline, time.monotonic() + self.job.grace_seconds)
                _send(ranks, signal.SIGTERM)
                self.tell(f"stopping, within {self.job.grace_seconds} s")
            codes = [rank.poll() for rank in ranks]
            if any(codes) and not self._signals:
                deadline = min(deadline, time.monotonic() + self.settle_seconds)
            if time.monotonic() > deadline:
                left = [index for index, code in enumerate(codes) if code is None]
                self.tell(f"processes {_listed(left)} haven't ended in time: they are killed")
                return
            time.sleep(_POLL_SECONDS)
        self._show(shown)

    # --- telling ---------------------------------------------------------------------------------------------

    def _show(self, log: Path) -> None:
        # Whatever a disk or a terminal refuses: a failed message must not end the gang.
        with contextlib.suppress(OSError):
            with log.open("rb") as file:
                file.seek(self._shown)
                output = file.read()
            self._shown += len(output)
            if output:
                self.show(output)

    def _note(self, state: str, **facts: Any) -> None:
        try:
            write_state(
                self.folder,
                name=self.job.name,
                state=state,
                restarts=self.restarts.lost,
                stops=self.restarts.stops,
                supervisor=os.getpid(),
                attempts=self.attempts,
                **facts,
            )
        except OSError as error:
            self.tell(f"the job's state can't be written, the gang keeps running: {error}")

    def _ended(self, code: int) -> int:
        meaning = verdict(code)
        state = "done" if meaning == "done" else "cancelled" if self._signals and meaning == "retry" else "failed"
        self._note(state, exit_code=code, detail=f"logs in {attempt_folder(self.folder, last_attempt(self.folder))}")
        return code

    # --- signals ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Inside, SIGTERM, Ctrl-C and the end of the terminal are queued for the loop, which passes them on."""
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # else `nohup` has said that it is to stay
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._signals.append(number)

    def _wait(self, seconds: float) -> bool:
        """Waits; returns at once, and True, when a signal comes."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._signals:
            time.sleep(_POLL_SECONDS)
        return bool(self._signals)


def _send(ranks: list[subprocess.Popen[bytes]], number: int) -> None:
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError):
            rank.send_signal(number)


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
