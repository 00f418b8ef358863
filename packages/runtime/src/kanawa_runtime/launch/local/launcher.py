"""`local`: the gang on this machine, for one host with several processes, for trying a job out, and for CI."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kanawa.config import NonNegative, Positive, to_json

from kanawa_runtime.launch.client import LauncherError, end_of
from kanawa_runtime.launch.job import Job, hosts, job_record, target
from kanawa_runtime.launch.launcher import Launcher, Status
from kanawa_runtime.launch.local import state
from kanawa_runtime.launch.local.supervisor import Supervisor

_START_SECONDS = 30.0
_LOG_BYTES = 16_384


class LocalLauncher(Launcher):
    """Starts the processes of a job here and restarts all of them when one is lost; a job is named by its run.

    The other end of `settle_seconds`: a process that hangs when its peer is lost is killed so many seconds later.
    """

    title = "this machine"
    watched = True
    is_here = True
    secrets_by = "export it in this shell, from which processes inherit it"

    class Config(Launcher.Config):
        poll_seconds: Positive = 0.2
        settle_seconds: NonNegative = 30.0
        backoff_seconds: NonNegative = 1.0
        most_backoff_seconds: NonNegative = 60.0

    def render(self, job: Job) -> dict[str, str]:
        """Returns the job itself, which the supervisor reads."""
        return {state.JOB: json.dumps(job_record(job), indent=1) + "\n"}

    def problems(self, job: Job) -> Iterator[str]:
        """Yields what one machine can't do."""
        if not job.run:
            yield "run is empty: logs and state lie in the run's directory; give one with --run"
        if target(job).hosts > 1 or hosts(job) > 1:
            yield f"target {job.target} has {max(target(job).hosts, hosts(job))} hosts; use another launcher"
        for name, given in (("image", job.image), ("queue", job.queue), ("priority", job.priority)):
            if given:
                yield f"{name} {given!r} means nothing to processes; leave --{name} out"
        if job.spot:
            yield "spot: it is this machine or none; leave --spot out"
        if job.spares:
            yield f"{job.spares} spares: there is one host only; leave --spares out"
        if job.resources:
            yield f"resources {job.resources}: processes take what there is; leave --resource out"

    def check_unused(self, job: Job) -> None:
        """Raises LauncherError where another supervisor holds the run."""
        state.check_free(state.folder_of(job.run))

    def run(self, job: Job, folder: Path, tell: Callable[[str], None]) -> int:
        """Runs the job in this process, the output of its first process on stderr; returns its exit code."""
        del folder
        home = state.folder_of(job.run)
        with state.held(home):
            state.write_job(home, job)
            return self._supervisor(job, home, tell, _to_stderr).run()

    def submit(self, job: Job, folder: Path) -> str:
        """Runs the job in the background, beyond this terminal; returns its run directory."""
        del folder
        home = state.folder_of(job.run)
        with state.held(home):
            state.write_job(home, job)
            (home / state.STATE).unlink(missing_ok=True)
        options = json.dumps(to_json(self.config))
        with (home / "supervisor.log").open("ab") as log:
            subprocess.run(
                [sys.executable, "-P", "-m", "kanawa_runtime.launch.local", str(home), options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                check=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not (home / state.STATE).exists():
            if time.monotonic() > deadline:
                message = f"the supervisor of {job.run} didn't start; see {home / 'supervisor.log'}"
                raise LauncherError(message)
            time.sleep(self.config.poll_seconds)
        return job.run

    def supervise(self, home: Path, tell: Callable[[str], None]) -> int:
        """Runs the job that lies in `home` to its end, in the background process."""
        with state.held(home):
            return self._supervisor(state.read_job(home), home, tell).run()

    def status(self, name: str) -> Status:
        """Returns where the job of a run stands."""
        return state.status(state.folder_of(name))

    def logs(self, name: str) -> str:
        """Returns the end of what a process of the newest attempt wrote: the one that failed first, else process 0."""
        home = state.folder_of(name)
        newest = state.last_attempt(home)
        records = {record["attempt"]: record for record in state.read_state(home)["attempts"]}
        failed = records.get(newest, {}).get("failed_first", 0)
        log = state.attempt_folder(home, newest) / f"rank-{failed}.log"
        text = end_of(log, _LOG_BYTES) if log.exists() else ""
        return f"process {failed} failed first; its log is {log}\n{text}" if failed else text

    def cancel(self, name: str) -> None:
        """Asks the supervisor to stop the gang, and waits for it; raises LauncherError after the grace period."""
        home = state.folder_of(name)
        facts = state.read_state(home)
        if not state.is_supervised(home):
            return
        os.kill(facts["supervisor"], signal.SIGTERM)
        seconds = state.read_job(home).grace_seconds + _START_SECONDS
        deadline = time.monotonic() + seconds
        while state.is_supervised(home):
            if time.monotonic() > deadline:
                message = f"{name} still runs {seconds:.0f} s after it was asked to stop; its supervisor is process "
                raise LauncherError(message + str(facts["supervisor"]))
            time.sleep(self.config.poll_seconds)

    def _supervisor(
        self, job: Job, home: Path, tell: Callable[[str], None], show: Callable[[bytes], None] = lambda output: None
    ) -> Supervisor:
        cfg = self.config
        return Supervisor(
            job,
            home,
            tell,
            show,
            settle_seconds=cfg.settle_seconds,
            backoff_seconds=cfg.backoff_seconds,
            most_backoff_seconds=cfg.most_backoff_seconds,
        )


def _to_stderr(output: bytes) -> None:
    sys.stderr.write(output.decode(errors="replace"))
    sys.stderr.flush()
