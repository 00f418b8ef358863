"""Refusals as OpenAI's clients understand them: a status, and an object that names field and limit."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from kanawa.errors import UsageError

from kanawa_runtime.serve.engine.request import EngineStoppedError, QueueFullError, RequestError

#: What each status is called in an error's `type`.
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "method_not_allowed_error",
    408: "timeout_error",
    410: "gone_error",
    413: "request_too_large_error",
    415: "unsupported_media_type_error",
    422: "unprocessable_request_error",
    429: "rate_limit_error",
    499: "client_closed_request",
    503: "service_unavailable_error",
}
STATUSES = tuple(_TYPES)
#: HTTP fields that the engine has other names for.
_HTTP_FIELDS = {"prompt_ids": "prompt", "adapter": "model"}


class ApiError(UsageError):
    """A request that is answered with an error; `param` names its field, `code` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        #: The JSON of a request whose fields are wrong; None of others.
        self.received: Any = None

    def body(self) -> dict[str, Any]:
        """Returns the error as JSON."""
        kind = _TYPES.get(self.status, "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def invalid(at: str, why: str, code: str | None = None) -> ApiError:
    """Returns the 400 of a field with a wrong value."""
    return ApiError(400, f"{at}: {why}" if at else why, param=at or None, code=code)


def unprocessable(at: str, why: str) -> ApiError:
    """Returns the 422 of a request that is well formed, and that this model can't do."""
    return ApiError(422, f"{at}: {why}" if at else why, param=at or None)


def unavailable(message: str, retry_after_seconds: float, code: str | None = None) -> ApiError:
    """Returns the 503 of a server that takes requests again later."""
    return ApiError(503, message, code=code, headers=_retry_after(retry_after_seconds))


def refused_by_engine(error: Exception) -> ApiError | None:
    """Returns the answer to a request that the engine refused: 429 where its queue is full; None for other errors."""
    if isinstance(error, EngineStoppedError):
        return unavailable(str(error), error.retry_after, "engine_stopped")
    if isinstance(error, QueueFullError):
        return ApiError(429, str(error), code="queue_full", headers=_retry_after(error.retry_after))
    if isinstance(error, RequestError):
        return invalid(_HTTP_FIELDS.get(error.field, error.field), str(error))
    return None


@contextlib.contextmanager
def engine_refusals() -> Iterator[None]:
    """Raises what the engine refuses within as the client's answer; other errors pass."""
    try:
        yield
    except Exception as error:
        refusal = refused_by_engine(error)
        if refusal is None:
            raise
        raise refusal from error


def _retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, round(seconds)))}


def shown(value: object, longest: int = 60) -> str:
    """Returns a value for a message, cut: what a client sent may be megabytes long."""
    if isinstance(value, dict):
        return f"an object of {len(value):,} entries"
    text = ascii(value[:longest] if isinstance(value, list | str) else value)
    return text if len(text) <= longest else f"{text[:longest]}…"
