"""What can go wrong between a job and the system that runs it."""

from collections.abc import Iterable

from kanawa.errors import KanawaError, UsageError


class JobError(UsageError):
    """The job asks for what its launcher can't give; `problems` lists everything, not only the first."""

    def __init__(self, launcher: str, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        lines = [f"{launcher} can't run this job:", *(f"- {problem}" for problem in self.problems)]
        super().__init__("\n".join(lines))


class LauncherError(KanawaError):
    """The system's own client is missing, or refused a call."""
