"""What a launcher must do; catalogued as `kanawa.launchers`."""

import abc
import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from kanawa.config import Configurable, Positive

from kanawa_runtime.exit_codes import DONE, STOPPED
from kanawa_runtime.launch.client import JobError
from kanawa_runtime.launch.job import Job, problems_of_any

State = Literal["queued", "running", "restarting", "done", "failed", "cancelled", "unknown"]
#: Names of variables that are secrets wherever they occur; a path of a file with credentials isn't one.
_SECRET = re.compile(r"(?i)((^|_)(token|(api|secret|access|private|secret_access)_?keys?)|password|passwd|secret)$")
ENDED: frozenset[State] = frozenset({"done", "failed", "cancelled"})


@dataclasses.dataclass(frozen=True)
class Status:
    """Where a job stands.

    `restarts` after what was lost so far, `stops` after which everything was saved, `exit_code` of one that ended,
    `detail` in the system's words.
    """

    state: State
    restarts: int = 0
    exit_code: int | None = None
    detail: str = ""
    stops: int = 0

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to the job."""
        return self.state in ENDED

    def code(self) -> int:
        """Returns what `--watch` returns to the shell: the job's own code, else one that fits its state."""
        if self.exit_code is not None:
            return self.exit_code
        return {"done": DONE, "cancelled": STOPPED}.get(self.state, 1)

    def line(self) -> str:
        """Returns it as a person reads it."""
        parts = [str(self.state)]
        if self.restarts:
            parts.append(f"restarts {self.restarts}")
        if self.stops:
            parts.append(f"stops {self.stops}")
        if self.exit_code is not None:
            parts.append(f"exit code {self.exit_code}")
        return ", ".join([*parts, *filter(None, [self.detail])])


class Launcher(Configurable):
    """Runs jobs on one system, with the system's own client tools.

    `render` is pure: the same job gives the same files, without asking the system. The other methods name a job by what
    `submit` returned. `watched` says whether `kanawa launch` stays until the end by default, `serves`
    whether it runs replicas of `kanawa serve` in place of `kanawa train`, `is_here` whether jobs run on this machine.
    In messages `title` names the system, and `secrets_by` says how a secret reaches processes without a file of ours.
    """

    title = "the launcher"
    secrets_by = "give it by the system's own means"
    watched = False
    is_here = False
    serves = False

    class Config(Configurable.Config):
        #: Between two looks at a job that is watched.
        poll_seconds: Positive = 10.0

    @abc.abstractmethod
    def render(self, job: Job) -> dict[str, str]:
        """Returns the files that describe the job to the system, by name."""

    @abc.abstractmethod
    def submit(self, job: Job, folder: Path) -> str:
        """Hands the files in `folder` over and returns what the system calls the job; raises LauncherError."""

    @abc.abstractmethod
    def status(self, name: str) -> Status:
        """Returns where a job stands; raises LauncherError where there is none of that name."""

    @abc.abstractmethod
    def logs(self, name: str) -> str:
        """Returns the newest of what the job wrote."""

    @abc.abstractmethod
    def cancel(self, name: str) -> None:
        """Stops a job for good, with its grace; nothing of it runs when this or the system is through."""

    def problems(self, job: Job) -> Iterator[str]:
        """Yields what of the job this launcher can't give, one sentence each with what to do."""
        del job
        yield from ()

    def check(self, job: Job) -> None:
        """Raises JobError with all that is wrong with the job."""
        wrong = [*problems_of_any(job), *self._secrets_in_clear(job), *self.problems(job)]
        if wrong:
            raise JobError(self.title, wrong)

    def check_unused(self, job: Job) -> None:
        """Raises LauncherError where the job runs already, as far as this launcher can say at once."""
        del job

    def _secrets_in_clear(self, job: Job) -> Iterator[str]:
        for name in filter(_SECRET.search, job.environment):
            yield f"environment variable {name} would stand in clear in the job's files; {self.secrets_by}"

    def watch(self, name: str, tell: Callable[[str], None]) -> int:
        """Tells each change of a job until it ends; returns its exit code."""
        before = None
        while True:
            status = self.status(name)
            if status != before:
                tell(f"{name}: {status.line()}")
                before = status
            if status.ended:
                return status.code()
            time.sleep(self.config.poll_seconds)

    def run(self, job: Job, folder: Path, tell: Callable[[str], None]) -> int:
        """Submits a job and stays until it ends; returns its exit code."""
        return self.watch(self.submit(job, folder), tell)
