"""What an answer has to look like, as requests say it: a response format, vLLM's structured outputs, or tools."""

import json
from collections.abc import Mapping
from typing import Any

from kanawa_runtime.serve.engine.errors import RequestError
from kanawa_runtime.serve.engine.request import Grammar
from kanawa_runtime.serve.http.errors import ApiError, invalid, unprocessable
from kanawa_runtime.serve.http.fields import AnyObject, Either, Field, Flag, Listed, Shaped, Text
from kanawa_runtime.serve.http.service import Service

#: A kind of grammar, what it is compiled from, and the request's field that holds it.
Structure = tuple[str, Any, str]
_MOST_SPEC = 256 * 1024

_SCHEMA = Shaped(
    {
        "name": Field(Text(256)),
        "description": Field(Text(_MOST_SPEC)),
        "schema": Field(AnyObject()),
        "strict": Field(Flag()),
    }
)
RESPONSE_FORMAT = Shaped(
    {
        "type": Field(Text(choices=("text", "json_object", "json_schema")), required=True),
        "json_schema": Field(_SCHEMA),
    }
)
STRUCTURED_OUTPUTS = Shaped(
    {
        "json": Field(Either((AnyObject(), Text(_MOST_SPEC))), help="a JSON schema, or the text of one"),
        "json_object": Field(Flag(), False),
        "regex": Field(Text(_MOST_SPEC, shortest=1)),
        "choice": Field(Listed(Text(10_000, shortest=1), 1000, 1)),
        "grammar": Field(Text(_MOST_SPEC, shortest=1), help="a Lark or EBNF grammar"),
    }
)


def structure_of(body: Mapping[str, Any]) -> Structure | None:
    """Returns what a request's `response_format` and `structured_outputs` ask for; raises the 400 of more than one."""
    asked: list[Structure] = []
    form = body["response_format"]
    if form is not None and form["type"] == "json_object":
        asked.append(("json_object", None, "response_format"))
    elif form is not None and form["type"] == "json_schema":
        schema = (form["json_schema"] or {}).get("schema")
        if schema is None:
            raise invalid(at="response_format.json_schema.schema", why="it is missing, expected a JSON schema")
        asked.append(("json_schema", schema, "response_format.json_schema.schema"))
    outputs = body["structured_outputs"] or {}
    kinds = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}
    asked += [
        (kind, outputs[name], f"structured_outputs.{name}")
        for name, kind in kinds.items()
        if outputs.get(name) is not None
    ]
    if outputs.get("json_object"):
        asked.append(("json_object", None, "structured_outputs.json_object"))
    if len(asked) > 1:
        fields = " and ".join(field for _, _, field in asked)
        raise invalid(at=asked[1][2], why=f"{fields} can't be asked for at once; give one of them")
    return asked[0] if asked else None


async def grammar_of(service: Service, structure: Structure | None) -> Grammar | None:
    """Returns the compiled grammar; raises the 422 of what can't be one, or takes too long."""
    if structure is None:
        return None
    kind, spec, field = structure
    maker = service.model.grammars
    if maker is None:
        why = 'structured output needs llguidance, which isn\'t installed at the server: pip install "kanawa[serve]"'
        raise unprocessable(at=field, why=why)
    if kind == "json_schema" and isinstance(spec, dict) and len(json.dumps(spec)) > _MOST_SPEC:
        raise invalid(at=field, why=f"the schema has more than {_MOST_SPEC:,} characters")
    try:
        return await service.in_compiler(lambda: maker.compile(kind, spec, field=field))
    except RequestError as error:
        raise ApiError(422, str(error), param=error.field, code="invalid_structure") from error
    except TimeoutError as error:
        seconds = service.config.grammar_seconds
        raise unprocessable(at=field, why=f"it took longer than {seconds:g} s to compile (grammar_seconds)") from error
