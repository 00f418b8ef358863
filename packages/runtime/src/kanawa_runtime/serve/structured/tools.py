"""Calls of tools as structured outputs: a schema that their JSON follows, and a grammar with a model's own marks."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any


def call_schema(functions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the schema of `{"name": …, "arguments": {…}}`, a call of one of the functions."""
    return {"anyOf": [_call(function) for function in functions]}


def tagged_grammar(
    functions: Sequence[Mapping[str, Any]],
    begin: str,
    end: str,
    *,
    required: bool,
    parallel: bool = True,
    special: Collection[str] = (),
) -> str:
    """Returns the Lark grammar of calls between a model's marks, such as <tool_call> and </tool_call>.

    `special` are the names of the tokenizer's special tokens: a mark among them is that token, else it is text.
    `required` asks for one call at least, and no text; without, a text may stand before each call and after the last,
    and be all there is. `parallel` allows several calls.
    """
    opening, closing = (mark if mark in special else json.dumps(mark) for mark in (begin, end))
    body = f"BLANK %json {json.dumps(call_schema(functions))} BLANK {closing}"
    rules = ["BLANK: /[ \\n]{0,2}/"]
    if required:
        rules += [f"start: call{' (BLANK call)*' if parallel else ''}", f"call: {opening} {body}"]
    else:
        rules += [f"start: call{'*' if parallel else '?'} TEXT", "TEXT: /(.|\\n)*/"]
        # A mark that is text ends the text before it at its first occurrence: hence lazy.
        rules += (
            [f"call: TEXT {opening} {body}"]
            if begin in special
            else [f"call: opened {body}", f"opened[lazy]: TEXT {opening}"]
        )
    return "\n".join(rules) + "\n"


def _call(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters")
    # Without parameters OpenAI means a function that takes none.
    empty = {"type": "object", "properties": {}, "additionalProperties": False}
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": empty if parameters is None else parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
