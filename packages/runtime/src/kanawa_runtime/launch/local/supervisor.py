"""Keeps a gang going: starts all its processes, and all of them again when one is lost. Never imports JAX.

A process that is lost takes the others with it: they notice within moments and end, or hang, and are ended here after
`settle_seconds`. What their codes mean, the table in `exit_codes` says.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from kanawa_runtime.exit_codes import (
    DONE,
    LOST,
    NOT_STARTED,
    PEER_LOST,
    STOPPED,
    code_text,
    ended_text,
    gang_code,
    verdict,
)
from kanawa_runtime.launch.job import Job, processes
from kanawa_runtime.launch.local.rank import Rank, free_port
from kanawa_runtime.launch.local.state import attempt_folder, last_attempt, write_state
from kanawa_runtime.launch.restarts import Restarts, reason_of

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
        self._number = 0
        self._why = ""

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
            ended = ended_text(codes)
            if delay is None:
                if verdict(code) == "retry":
                    self.tell(f"{ended}: no restarts are left of {self.job.retries}")
                elif code:
                    self.tell(f"{ended}: {code} is permanent, the same command would fail the same way")
                return code
            self.tell(f"{ended}: starting all of them again in {delay:.0f} s, {self.restarts.last(codes)}")
            self._note("restarting")
            if self._wait(delay):
                return STOPPED

    # --- one attempt -----------------------------------------------------------------------------------------

    def _attempt(self) -> list[int]:
        """Runs all processes to their end and returns their codes; no process remains in any case."""
        self._number = max(self._number, last_attempt(self.folder)) + 1
        logs = attempt_folder(self.folder, self._number)
        with self._disk("no logs are kept"):
            logs.mkdir(parents=True, exist_ok=True)
        coordinator = f"127.0.0.1:{free_port()}"
        ranks: list[Rank] = []
        self._why = ""
        record: dict[str, Any] = {"attempt": self._number, "started": time.time()}
        self.attempts.append(record)
        try:
            for index in range(processes(self.job)):
                ranks.append(Rank(self.job, index, coordinator, self._number, logs / f"rank-{index}.log"))
            for rank in ranks:
                rank.listen()
            self._note("running", pids=[rank.pid for rank in ranks])
            self._see_through(ranks)
        except OSError as error:
            self.tell(f"{self.job.command[0]} can't be started: {error.strerror or error}")
            codes = [NOT_STARTED if isinstance(error, FileNotFoundError | PermissionError) else LOST]
        else:
            codes = []
        finally:
            ended = [rank.kill() for rank in ranks]
        codes = codes or ended
        self._show(ranks)
        record |= {"ended": time.time(), "exit_codes": codes, "verdict": verdict(gang_code(codes))}
        return codes

    def _see_through(self, ranks: list[Rank]) -> None:
        """Returns when all have ended, or the time of those that are left is over."""
        forwarded, deadline, has_told = 0, float("inf"), False
        while True:
            # Before the look at who has ended: what a process says of a lost one comes after that one's end.
            output = ranks[0].output()
            codes = [rank.poll() for rank in ranks]
            if not has_told and not self._signals:
                has_told = self._tell_first(ranks, codes)
            self._say(output)
            if None not in codes:
                return
            if len(self._signals) > forwarded:
                forwarded = len(self._signals)
                if forwarded > 1 and self._signals[-1] == signal.SIGINT:
                    return  # a second Ctrl-C: at once
                deadline = min(deadline, time.monotonic() + self.job.grace_seconds)
                for rank in ranks:
                    rank.send_signal(signal.SIGTERM)
                self.tell(f"stopping, within {self.job.grace_seconds} s")
            if any(codes) and not self._signals:
                deadline = min(deadline, time.monotonic() + self.settle_seconds)
            if time.monotonic() > deadline:
                left = [index for index, code in enumerate(codes) if code is None]
                self.tell(f"processes {', '.join(map(str, left))} haven't ended in time: they are killed")
                return
            time.sleep(_POLL_SECONDS)

    def _tell_first(self, ranks: list[Rank], codes: list[int | None]) -> bool:
        """Says which process of a gang failed, and why, before the others say that they lost it; whether one did."""
        failed = [
            rank for rank, code in zip(ranks, codes, strict=True) if code is not None and _is_at_fault(rank, code)
        ]
        if not failed:
            return False
        # A permanent end first: the others follow from it.
        rank = min(failed, key=lambda one: (verdict(codes[one.index] or 0) != "permanent", one.index))
        rank.wait_for_the_rest()
        self._why = why = reason_of(rank.end())
        self.attempts[-1]["failed_first"] = rank.index
        if len(ranks) == 1:
            return True  # its own words are on the screen
        self._why = f"process {rank.index} failed first{f': {why}' if why else ''}"
        self.tell(
            f"process {rank.index} of {len(ranks)} failed first, with {code_text(codes[rank.index] or 0)}"
            f"{f': {why}' if why else ', without a word'}\nits log is {rank.log}"
        )
        return True

    # --- telling ---------------------------------------------------------------------------------------------

    def _show(self, ranks: list[Rank]) -> None:
        self._say(ranks[0].output() if ranks else b"")

    def _say(self, output: bytes) -> None:
        # Whatever a terminal refuses: a failed message must not end the gang.
        with contextlib.suppress(OSError):
            if output:
                self.show(output)

    @contextlib.contextmanager
    def _disk(self, what: str) -> Iterator[None]:
        """Inside, a disk that refuses costs a line, and not the job."""
        try:
            yield
        except OSError as error:
            self.tell(f"{what}, the gang keeps running: {error}")

    def _note(self, state: str, **facts: Any) -> None:
        with self._disk("the job's state can't be written"):
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

    def _ended(self, code: int) -> int:
        meaning = verdict(code)
        state = "done" if meaning == "done" else "cancelled" if self._signals and meaning == "retry" else "failed"
        why = f"{self._why}; " if self._why and state == "failed" else ""
        self._note(state, exit_code=code, detail=f"{why}logs in {attempt_folder(self.folder, self._number)}")
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


def _is_at_fault(rank: Rank, code: int) -> bool:
    """Whether an ended process failed by itself: one that lost its peers says so, or has no word of an error."""
    if code != LOST:
        return code not in (DONE, STOPPED)
    rank.wait_for_the_rest()
    said = rank.end()
    return "kanawa: error:" in said and f"kanawa: {PEER_LOST}" not in said
