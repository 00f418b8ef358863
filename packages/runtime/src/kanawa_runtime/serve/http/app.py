"""The ASGI application of every route: keys first, errors in the route's own shape."""

import logging
from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from kanawa_runtime.serve.http.errors import ApiError
from kanawa_runtime.serve.http.exchange import ClientGoneError, Exchange
from kanawa_runtime.serve.http.openapi import document
from kanawa_runtime.serve.http.route import Operation, Routes, routes_of
from kanawa_runtime.serve.http.service import Service

logger = logging.getLogger(__name__)


def application(service: Service, further: Routes | None = None) -> Starlette:
    """Returns the application that serves every route of a service."""
    listed = routes_of(service, further)

    async def answer_document(exchange: Exchange) -> None:
        await exchange.answer(document(listed))

    listed.append(Operation("GET", "/openapi.json", "This document", answer_document))
    # Names may hold slashes, as those of the hub do.
    routes = [Route(o.path.replace("{name}", "{name:path}"), Endpoint(service, o), methods=[o.method]) for o in listed]
    paths: dict[str, list[str]] = {}
    for operation in listed:
        paths.setdefault(operation.path, []).append(operation.method)

    async def refused(scope_request: Any, error: Exception) -> Any:
        return _Refusal(service, _no_route(error, scope_request.scope, paths))

    return Starlette(routes=routes, exception_handlers={HTTPException: refused})


class Endpoint:
    """One operation as an ASGI application."""

    def __init__(self, service: Service, operation: Operation) -> None:
        self._service = service
        self._operation = operation

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers a request; an exception becomes an error's response."""
        service, operation = self._service, self._operation
        exchange = Exchange(scope, receive, send, service.config)
        exchange.bodies, exchange.error_body = service.bodies, operation.error_body
        try:
            try:
                exchange.check_headers()
                service.hosts.check_host(exchange.headers)
                if operation.key != "none":
                    key = service.keys.check_key(exchange.headers, admin=operation.key == "admin")
                    exchange.client = key or exchange.client
                    exchange.weight = service.keys.weight_of(exchange.client)
                await operation.handler(exchange)
            except ApiError as error:
                await exchange.refuse(error)
            except Exception as error:
                if isinstance(error, ClientGoneError) or exchange.status is not None:
                    raise
                logger.exception("%s failed", operation.path)
                await exchange.refuse(ApiError(500, f"{type(error).__name__} at the server; its log says more"))
        except ClientGoneError:
            # The status is for the log and the metrics alone.
            exchange.status = 499
            logger.info("%s: the client closed the connection (499)", operation.path)
        finally:
            exchange.release_body()
        service.metrics.count_response(operation.path, exchange.status or 500)


class _Refusal:
    """An error as a response that Starlette can send."""

    def __init__(self, service: Service, error: ApiError) -> None:
        self._service = service
        self._error = error

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange = Exchange(scope, receive, send, self._service.config)
        self._service.metrics.count_response("other", self._error.status)
        try:
            await exchange.refuse(self._error)
        except ClientGoneError:
            logger.debug("the client left before it got an error")


def _no_route(error: Exception, scope: Any, paths: dict[str, list[str]]) -> ApiError:
    """Returns the error of a path or a method that isn't there."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    path = ascii(scope["path"][:80])
    if status == 405:
        allowed: Sequence[str] = paths.get(scope["path"], ["GET"])
        message = f"{scope['method']} {path} isn't offered, expected {' or '.join(allowed)}"
        return ApiError(405, message, headers={"Allow": ", ".join(allowed)})
    message = f"there is no {path} here; /openapi.json lists what there is"
    return ApiError(404, message, code="unknown_path")
