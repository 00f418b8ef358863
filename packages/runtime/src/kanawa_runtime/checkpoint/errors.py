"""What can go wrong with a checkpoint, one class per kind."""

from kanawa.contracts import CheckpointError
from kanawa.errors import UsageError


class CheckpointDamagedError(CheckpointError):
    """A committed checkpoint can't be read back exactly; `reasons` lists what was found."""

    def __init__(self, message: str, reasons: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.reasons = reasons or (message,)


class CheckpointNotFoundError(CheckpointError, UsageError):
    """The asked step is not a committed checkpoint."""


class CheckpointStructureError(CheckpointError, UsageError):
    """A sound checkpoint doesn't fit the arrays asked for; `problems` lists every difference."""

    def __init__(self, message: str, problems: tuple[str, ...]) -> None:
        super().__init__(message)
        self.problems = problems
