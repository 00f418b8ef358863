"""All routes in one table, the document made of it, and the ASGI application: keys first, errors in OpenAI's shape."""

import dataclasses
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from kanawa_runtime._version import __version__
from kanawa_runtime.serve.http.chat import Chat
from kanawa_runtime.serve.http.completions import Completions
from kanawa_runtime.serve.http.errors import STATUSES, ApiError
from kanawa_runtime.serve.http.exchange import ClientGoneError, Exchange
from kanawa_runtime.serve.http.messages import Messages, TokenCounts, error_of_messages
from kanawa_runtime.serve.http.operation import (
    Page,
    answer_detokenize,
    answer_health,
    answer_load,
    answer_metrics,
    answer_models,
    answer_tokenize,
    answer_tokenizer_info,
    answer_version,
)
from kanawa_runtime.serve.http.pooled import Classify, Embeddings, Rerank
from kanawa_runtime.serve.http.protocol import LoadRequest, detokenize_request, tokenize_request
from kanawa_runtime.serve.http.responses import Responses
from kanawa_runtime.serve.http.service import Service
from kanawa_runtime.serve.pooling.engine import PoolingEngine

Handler = Callable[[Exchange], Awaitable[None]]
#: Statuses of routes with a body, and of those whose answers are computed.
_TAKES = (400, 408, 413, 415)
_ANSWERS = (*_TAKES, 404, 422, 429, 503)
_JSON, _TEXT, _HTML, _EVENTS = "application/json", "text/plain", "text/html", "text/event-stream"


@dataclasses.dataclass(frozen=True)
class Operation:
    """A method of a path; `key` names whose key it needs, `kinds` its content types, `refuses` its statuses.

    `error_body` writes its errors.
    """

    method: Literal["GET", "POST"]
    path: str
    about: str
    handler: Handler
    key: Literal["none", "api", "admin"] = "none"
    body: type[BaseModel] | None = None
    kinds: tuple[str, ...] = (_JSON,)
    refuses: tuple[int, ...] = ()
    error_body: Callable[[ApiError], dict[str, Any]] = ApiError.body


Further = Callable[[Service], list[Operation]]


def operations(service: Service, further: Further | None = None) -> list[Operation]:
    """Returns every route of a server, those of `further` parts of it too."""
    takes = _TAKES
    partial, engine = functools.partial, service.model.engine
    tokens, ids = tokenize_request(service.config), detokenize_request(engine.limits)
    tokenize = partial(answer_tokenize, service, tokens)
    detokenize = partial(answer_detokenize, service, ids)
    models, info = partial(answer_models, service), partial(answer_tokenizer_info, service)
    metrics, load = partial(answer_metrics, service), partial(answer_load, service)
    health, ready = partial(answer_health, service), partial(answer_health, service, ready=True)
    loads = (*takes, 403, 422, 429, 503)
    listed = [
        *(_pooling(service, engine) if isinstance(engine, PoolingEngine) else _generating(service)),
        Operation("GET", "/v1/models", "List models", models, "api"),
        Operation("GET", "/v1/models/{name}", "Show a model", models, "api", refuses=(404,)),
        Operation("POST", "/tokenize", "Tokenize", tokenize, "api", tokens, refuses=(*takes, 404, 422)),
        Operation("POST", "/detokenize", "Detokenize", detokenize, "api", ids, refuses=(*takes, 404)),
        Operation("GET", "/tokenizer_info", "Special tokens and template", info, "api"),
        Operation("POST", "/load", "Load other weights", load, "admin", LoadRequest, refuses=loads),
        Operation("GET", "/health", "Alive?", health, refuses=(503,)),
        Operation("GET", "/ready", "Does it take requests?", ready, refuses=(503,)),
        Operation("GET", "/metrics", "Prometheus metrics", metrics, kinds=(_TEXT,)),
        Operation("GET", "/version", "Version", answer_version),
        Operation("GET", "/", "A page to chat on", Page(), kinds=(_HTML,)),
        *(further(service) if further is not None else ()),
    ]

    async def answer_document(exchange: Exchange) -> None:
        await exchange.answer(document(listed))

    listed.append(Operation("GET", "/openapi.json", "This document", answer_document))
    return listed


def _generating(service: Service) -> list[Operation]:
    """Returns the routes of a model that writes texts."""
    texts, chat = Completions(service), Chat(service)
    responses, messages, counts = Responses(chat), Messages(chat), TokenCounts(chat)
    both, generates = (_JSON, _EVENTS), _ANSWERS
    return [
        Operation("POST", "/v1/completions", "Continue texts", texts, "api", texts.body, both, generates),
        Operation("POST", "/v1/chat/completions", "Answer a conversation", chat, "api", chat.body, both, generates),
        Operation("POST", "/v1/responses", "Answer items", responses, "api", responses.body, both, generates),
        Operation(
            "POST",
            "/v1/messages",
            "Answer messages",
            messages,
            "api",
            messages.body,
            both,
            generates,
            error_of_messages,
        ),
        Operation(
            "POST",
            "/v1/messages/count_tokens",
            "Count the tokens of messages",
            counts,
            "api",
            counts.body,
            refuses=(*_TAKES, 404, 422, 503),
            error_body=error_of_messages,
        ),
    ]


def _pooling(service: Service, engine: PoolingEngine) -> list[Operation]:
    """Returns the routes of a model whose texts are pooled."""
    embeddings, rerank, classify = Embeddings(service, engine), Rerank(service, engine), Classify(service, engine)
    return [
        Operation("POST", "/v1/embeddings", "Embed texts", embeddings, "api", embeddings.body, refuses=_ANSWERS),
        Operation("POST", "/v1/rerank", "Order documents", rerank, "api", rerank.body, refuses=_ANSWERS),
        Operation("POST", "/classify", "Label texts", classify, "api", classify.body, refuses=_ANSWERS),
    ]


def document(listed: list[Operation]) -> dict[str, Any]:
    """Returns the OpenAPI document of routes."""
    bodies = [operation.body for operation in listed if operation.body is not None]
    template = "#/components/schemas/{model}"
    schemas, shared = models_json_schema([(body, "validation") for body in bodies], ref_template=template)
    paths: dict[str, dict[str, Any]] = {}
    for operation in listed:
        schema = None if operation.body is None else schemas[operation.body, "validation"]
        paths.setdefault(operation.path, {})[operation.method.lower()] = _documented(operation, schema)
    error = {"type": "object", "properties": {"error": {"type": "object"}}, "required": ["error"]}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Kanawa", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {"Error": error, **shared["$defs"]},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _documented(operation: Operation, schema: Any) -> dict[str, Any]:
    # Of no type: readers of the document take a schema of events for that of each one, or of all as one text.
    shapes: dict[str, dict[str, Any]] = {
        _JSON: {"type": "object"},
        _EVENTS: {"description": "each event's data is an object; without events' names, the last is [DONE]"},
    }
    content = {kind: {"schema": shapes.get(kind, {"type": "string"})} for kind in operation.kinds}
    responses: dict[str, Any] = {"200": {"description": "done", "content": content}}
    made: dict[str, Any] = {"summary": operation.about, "responses": responses}
    if schema is not None:
        made["requestBody"] = {"required": True, "content": {_JSON: {"schema": schema}}}
    if "{name}" in operation.path:
        made["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    # Any of them may be requested under a wrong host name.
    refused = (*operation.refuses, 403) if operation.key == "none" else (*operation.refuses, 401, 403)
    error = {"schema": {"$ref": "#/components/schemas/Error"}}
    for status in sorted(set(refused) & set(STATUSES)):
        responses[str(status)] = {"description": "an error", "content": {_JSON: error}}
    return made | ({"security": [{"key": []}]} if operation.key != "none" else {})


logger = logging.getLogger(__name__)


def application(service: Service, further: Further | None = None) -> Starlette:
    """Returns the application that serves every route of a service."""
    listed = operations(service, further)
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
