"""All routes in one table: what each answers, what it takes, and whose key it needs; the document is made of it too."""

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from kanawa_runtime._version import __version__
from kanawa_runtime.serve.http.chat import Chat
from kanawa_runtime.serve.http.completions import Completions
from kanawa_runtime.serve.http.errors import STATUSES
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.operation import Health, Load, MetricsPage, Models, Page, answer_version
from kanawa_runtime.serve.http.protocol import LoadRequest
from kanawa_runtime.serve.http.service import Service
from kanawa_runtime.serve.http.tokens import Detokenize, Tokenize, TokenizerInfo

Handler = Callable[[Exchange], Awaitable[None]]
_JSON, _TEXT, _HTML, _EVENTS = "application/json", "text/plain", "text/html", "text/event-stream"


@dataclasses.dataclass(frozen=True)
class Operation:
    """A method of a path; `key` names whose key it needs, `kinds` its content types, `refuses` its statuses."""

    method: Literal["GET", "POST"]
    path: str
    about: str
    handler: Handler
    key: Literal["none", "api", "admin"] = "none"
    body: type[BaseModel] | None = None
    kinds: tuple[str, ...] = (_JSON,)
    refuses: tuple[int, ...] = ()


def operations(service: Service) -> list[Operation]:
    """Returns every route of a server."""
    takes = (400, 408, 413, 415)
    generates = (*takes, 404, 422, 429, 503)
    both = (_JSON, _EVENTS)
    texts, chat = Completions(service), Chat(service)
    tokenize, detokenize = Tokenize(service), Detokenize(service)
    loads = (*takes, 403, 422, 429, 503)
    listed = [
        Operation("POST", "/v1/completions", "Continue texts", texts, "api", texts.body, both, generates),
        Operation("POST", "/v1/chat/completions", "Answer a conversation", chat, "api", chat.body, both, generates),
        Operation("GET", "/v1/models", "List models", Models(service), "api"),
        Operation("GET", "/v1/models/{name}", "Show a model", Models(service), "api", refuses=(404,)),
        Operation("POST", "/tokenize", "Tokenize", tokenize, "api", tokenize.body, refuses=(*takes, 404, 422)),
        Operation("POST", "/detokenize", "Detokenize", detokenize, "api", detokenize.body, refuses=(*takes, 404)),
        Operation("GET", "/tokenizer_info", "Special tokens and template", TokenizerInfo(service), "api"),
        Operation("POST", "/load", "Load other weights", Load(service), "admin", LoadRequest, refuses=loads),
        Operation("GET", "/health", "Alive?", Health(service), refuses=(503,)),
        Operation("GET", "/ready", "Does it take requests?", Health(service, ready=True), refuses=(503,)),
        Operation("GET", "/metrics", "Prometheus metrics", MetricsPage(service), kinds=(_TEXT,)),
        Operation("GET", "/version", "Version", answer_version),
        Operation("GET", "/", "A page to chat on", Page(), kinds=(_HTML,)),
    ]

    async def answer_document(exchange: Exchange) -> None:
        await exchange.answer(document(listed))

    listed.append(Operation("GET", "/openapi.json", "This document", answer_document))
    return listed


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
        _EVENTS: {"description": "each event's data is an object like the whole answer's; the last one's is [DONE]"},
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
