"""The messages and tools of a chat request, as chat templates take them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kanawa_runtime.serve.http.errors import invalid
from kanawa_runtime.serve.http.fields import AnyObject, Either, Field, Flag, Listed, Shaped, Text
from kanawa_runtime.serve.http.limits import ServerConfig

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_NO_FUNCTIONS = "it has been replaced by tools and tool_choice; give those"
_TEXT_ONLY = "the models here take text alone"


def message_fields(config: ServerConfig) -> dict[str, Field]:
    """Returns the fields of a chat request that make up its conversation."""
    text = Text(config.max_body_bytes)
    part = Shaped(
        {"type": Field(Text(choices=("text",)), required=True), "text": Field(text, required=True)},
        ignored=("cache_control",),
    )
    called = Shaped({"name": Field(Text(256), required=True), "arguments": Field(text, "")})
    call = Shaped(
        {"id": Field(Text(256)), "type": Field(Text(choices=("function",)), "function"), "function": Field(called)},
        ignored=("index",),
    )
    message = Shaped(
        {
            "role": Field(Text(choices=_ROLES), required=True),
            "content": Field(Either((text, Listed(part, config.max_messages)))),
            "name": Field(Text(256)),
            "tool_calls": Field(Listed(call, config.max_tools)),
            "tool_call_id": Field(Text(256)),
            "reasoning_content": Field(text),
        },
        # What responses hold and clients send back as it came.
        ignored=("refusal", "annotations", "audio", "function_call", "reasoning"),
    )
    function = Shaped(
        {
            "name": Field(Text(256, shortest=1), required=True),
            "description": Field(text),
            "parameters": Field(AnyObject()),
            "strict": Field(Flag()),
        }
    )
    kind = Field(Text(choices=("function",)), required=True)
    tool = Shaped({"type": kind, "function": Field(function, required=True)})
    named = Shaped({"name": Field(Text(256, shortest=1), required=True)})
    choice = Shaped({"type": kind, "function": Field(named, required=True)})
    return {
        "messages": Field(Listed(message, config.max_messages, 1), required=True),
        "tools": Field(Listed(tool, config.max_tools)),
        "tool_choice": Field(Either((Text(choices=("none", "auto", "required")), choice))),
        "parallel_tool_calls": Field(Flag(), True),
        "functions": Field(Listed(AnyObject(), 1), refused=_NO_FUNCTIONS),
        "function_call": Field(Either((Text(), AnyObject())), refused=_NO_FUNCTIONS),
        "modalities": Field(Listed(Text(choices=("text",)), 1)),
        "audio": Field(AnyObject(), refused=_TEXT_ONLY),
    }


def for_template(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns messages as templates read them: content as one text, arguments of calls as objects."""
    return [_for_template(message, index) for index, message in enumerate(messages)]


def _for_template(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    made = {name: value for name, value in message.items() if value is not None}
    content = message["content"]
    made["content"] = "".join(part["text"] for part in content) if isinstance(content, list) else content or ""
    if made["role"] == "developer":
        made["role"] = "system"
    if message["tool_calls"]:
        made["tool_calls"] = [
            _call_for_template(call, f"messages[{index}].tool_calls[{place}]")
            for place, call in enumerate(message["tool_calls"])
        ]
    return made


def _call_for_template(call: Mapping[str, Any], at: str) -> dict[str, Any]:
    function = call["function"]
    if function is None:
        raise invalid(at, "it has no function, expected a name and arguments")
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError) as error:
        raise invalid(at + ".function.arguments", f"expected the text of a JSON object: {error}") from error
    return {**call, "function": {"name": function["name"], "arguments": arguments}}
