"""The OpenAPI document of routes."""

from typing import Any

from pydantic.json_schema import models_json_schema

from kanawa_runtime._version import __version__
from kanawa_runtime.serve.http.errors import STATUSES
from kanawa_runtime.serve.http.route import EVENTS, JSON, Operation


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
        JSON: {"type": "object"},
        EVENTS: {"description": "each event's data is an object; without events' names, the last is [DONE]"},
    }
    content = {kind: {"schema": shapes.get(kind, {"type": "string"})} for kind in operation.kinds}
    responses: dict[str, Any] = {"200": {"description": "done", "content": content}}
    made: dict[str, Any] = {"summary": operation.about, "responses": responses}
    if schema is not None:
        made["requestBody"] = {"required": True, "content": {operation.takes: {"schema": schema}}}
    if "{name}" in operation.path:
        made["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    # Any of them may be requested under a wrong host name.
    refused = (*operation.refuses, 403) if operation.key == "none" else (*operation.refuses, 401, 403)
    error = {"schema": {"$ref": "#/components/schemas/Error"}}
    for status in sorted(set(refused) & set(STATUSES)):
        responses[str(status)] = {"description": "an error", "content": {JSON: error}}
    return made | ({"security": [{"key": []}]} if operation.key != "none" else {})
