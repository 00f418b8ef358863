"""A route of a server, and every route that one model has: a file of the group `kanawa.routes` offers some."""

import dataclasses
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal

from kanawa.errors import INTERRUPTIONS, UsageError
from kanawa.plugins import host
from kanawa.plugins.discovery import own_packages
from kanawa.plugins.fault import how_to_skip
from kanawa.plugins.states import SKIP_VARIABLE
from pydantic import BaseModel

from kanawa_runtime.serve.http.errors import ApiError
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.service import Service

JSON, TEXT, HTML, EVENTS = "application/json", "text/plain", "text/html", "text/event-stream"
#: Statuses of routes with a body, and of those whose answers are computed.
TAKES = (400, 408, 413, 415)
ANSWERS = (*TAKES, 404, 422, 429, 503)


@dataclasses.dataclass(frozen=True)
class Operation:
    """A method of a path; `key` names whose key it needs, `kinds` its content types, `refuses` its statuses.

    `takes` is the content type of `body`; `error_body` writes errors. Keys, limits of bodies and connections, errors,
    metrics and the OpenAPI document reach each operation.
    """

    method: Literal["GET", "POST"]
    path: str
    about: str
    handler: Callable[[Exchange], Awaitable[None]]
    key: Literal["none", "api", "admin"] = "none"
    body: type[BaseModel] | None = None
    kinds: tuple[str, ...] = (JSON,)
    refuses: tuple[int, ...] = ()
    error_body: Callable[[ApiError], dict[str, Any]] = ApiError.body
    takes: str = JSON


#: What an entry point of `kanawa.routes` names: the routes that a server's model has, none where it has no use of them.
Routes = Callable[[Service], Iterable[Operation]]


def routes_of(service: Service, further: Routes | None = None) -> list[Operation]:
    """Returns every route of a server, those of `further` parts of it too.

    A file of another distribution that raises is left out with a warning. Raises UsageError where two offer one route.
    """
    found: dict[tuple[str, str], tuple[Operation, str]] = {}

    def add(operations: Iterable[Operation], owner: str) -> None:
        for operation in operations:
            _, other = found.setdefault((operation.method, operation.path), (operation, owner))
            if other != owner:
                route = f"{operation.method} {operation.path}"
                message = f"{other} and {owner} both answer {route}; leave one out: {SKIP_VARIABLE}={owner}"
                raise UsageError(message)

    for state, offered in host().loaded("routes"):
        try:
            operations = list(offered(service))
        except INTERRUPTIONS:
            raise
        except Exception as error:
            if state.distribution in own_packages():
                raise
            host().warn(f"{state.label} {state.key} failed: {type(error).__name__}: {error}; {how_to_skip(state)}")
        else:
            add(operations, state.key)
    add(further(service) if further is not None else (), "this server")
    return [operation for operation, _ in found.values()]
