"""Calls of tools as structured outputs: a schema that their JSON follows, and a grammar with a model's own marks."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kanawa.errors import did_you_mean

from kanawa_runtime.serve.engine.request import RequestError


def chosen_tools(tools: Sequence[Mapping[str, Any]], name: str | None) -> list[Mapping[str, Any]]:
    """Returns the functions of OpenAI's `tools`, or the one called `name`.

    Raises RequestError of field `tools` or `tool_choice`.
    """
    functions = []
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
            message = f'tools[{index}] has no function with a name, expected {{"type": "function", "function": {{…}}}}'
            raise RequestError(message, "tools")
        parameters = function.get("parameters")
        if not isinstance(parameters, (Mapping, bool, type(None))):
            message = f"tools[{index}].function.parameters is {type(parameters).__name__}, expected an object"
            raise RequestError(message, "tools")
        functions.append(function)
    names = [function["name"] for function in functions]
    twice = {n for n in names if names.count(n) > 1}
    if twice:
        message = f"tools has more than one function called {min(twice)!r}; names tell them apart"
        raise RequestError(message, "tools")
    if name is None:
        if not functions:
            message = "tools is empty, and a call of one is asked for"
            raise RequestError(message, "tools")
        return functions
    if name not in names:
        message = f"tool_choice names {name!r}, which is none of the tools{did_you_mean(name, names)}"
        raise RequestError(message, "tool_choice")
    return [functions[names.index(name)]]


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
        # A mark that is text ends the text before it where it first stands, whatever might follow: hence lazy.
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
