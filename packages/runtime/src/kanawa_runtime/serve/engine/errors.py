"""What an engine refuses, with what a server needs to answer."""

from kanawa.errors import UsageError


class RequestError(UsageError):
    """A request the engine can't take; `field` names which of its fields is at fault."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class QueueFullError(UsageError):
    """The engine's queue is full, or it is draining; `retry_after` says in how many seconds to ask again."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineStoppedError(QueueFullError):
    """The engine has ended, or died of an error that the message tells; it takes nothing any more."""
