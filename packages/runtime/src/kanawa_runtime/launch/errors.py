"""What can go wrong between a job and its engine."""

from collections.abc import Iterable

from kanawa.errors import KanawaError, UsageError


class JobError(UsageError):
    """The job asks for what its engine can't give; `problems` lists everything, not only the first."""

    def __init__(self, engine: str, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        lines = [f"{engine} can't run this job:", *(f"- {problem}" for problem in self.problems)]
        super().__init__("\n".join(lines))


class EngineError(KanawaError):
    """The engine's own client is missing, or refused what it was asked."""
