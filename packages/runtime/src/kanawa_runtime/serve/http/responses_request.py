"""The body of `/v1/responses`, and the chat that it is: its items as messages, its tools and formats as chat's.

Source: OpenAI's API reference, "Create a model response".
"""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from kanawa_runtime.serve.http.protocol import ConversationTemplate, NamedFunction, NewTokens, SampledRequest
from kanawa_runtime.serve.http.validation import Fields, Length, Name, by_type, wrong_field

_KINDS = {"message": "(message)", "function_call": "(call)", "function_call_output": "(output)", "reasoning": "(past)"}
_STATELESS = "this server stores no answers; send the items before as part of input"


def _check_object(text: str) -> str:
    try:
        is_object = isinstance(json.loads(text or "{}"), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise wrong_field(at="", why="it isn't the JSON text of an object")
    return text


class InputPart(Fields):
    """A text in a message or a result; the types differ by who wrote it."""

    IGNORED = frozenset(("annotations", "logprobs", "prompt_cache_breakpoint"))
    type: Literal["input_text", "output_text", "text", "refusal"]
    text: str = ""
    refusal: str = ""


class InputPicture(Fields):
    """A picture in a message or a result."""

    IGNORED = frozenset(("prompt_cache_breakpoint",))
    REFUSED = {"file_id": "this server stores no files; send the picture's bytes as a data URL in image_url"}
    type: Literal["input_image"]
    image_url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


def _kind_of_part(part: Any) -> str | None:
    kind = part.get("type") if isinstance(part, dict) else None
    return "(picture)" if kind == "input_image" else "(text)" if isinstance(kind, str) else None


#: A text, or its parts.
Content = Annotated[
    Annotated[str, Tag("(text)")]
    | Annotated[
        list[
            Annotated[
                Annotated[InputPart, Tag("(text)")] | Annotated[InputPicture, Tag("(picture)")],
                Discriminator(_kind_of_part, "kind", "Input should be a part with a type"),
            ]
        ],
        Field(fail_fast=True),
        Tag("(list)"),
    ],
    by_type("a text or a list of parts"),
]


class InputMessage(Fields):
    """What somebody said."""

    IGNORED = frozenset(("id", "status", "phase"))
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class FunctionCall(Fields):
    """A call that the model made earlier."""

    IGNORED = frozenset(("id", "status", "caller", "namespace", "async"))
    type: Literal["function_call"]
    call_id: Name
    name: Name
    arguments: Annotated[str, AfterValidator(_check_object)] = ""


class FunctionCallOutput(Fields):
    """What a call returned."""

    IGNORED = frozenset(("id", "status", "caller"))
    type: Literal["function_call_output"]
    call_id: Name
    output: Content


class PastReasoning(Fields):
    """What another model thought, which no template here shows."""

    IGNORED = frozenset(("id", "status", "summary", "content", "encrypted_content"))
    type: Literal["reasoning"]


def _kind_of_item(item: Any) -> str | None:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    return _KINDS.get(kind) if isinstance(kind, str) else None


_Item = Annotated[
    Annotated[InputMessage, Tag("(message)")]
    | Annotated[FunctionCall, Tag("(call)")]
    | Annotated[FunctionCallOutput, Tag("(output)")]
    | Annotated[PastReasoning, Tag("(past)")],
    Discriminator(_kind_of_item, "kind", f"Input should be an object with one of the types {', '.join(_KINDS)}"),
]


class FunctionTool(Fields):
    """A function that the model may call."""

    IGNORED = frozenset(("defer_loading", "allowed_callers", "output_schema"))
    type: Literal["function"]
    name: Annotated[str, Length(256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChosenFunction(NamedFunction):
    """The one function that has to be called."""

    type: Literal["function"]


class TextFormat(Fields):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: str | None = None
    content: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(Fields):
    """How the answer is written."""

    IGNORED = frozenset(("verbosity",))
    format: TextFormat | None = None


class ResponsesRequest(SampledRequest, ConversationTemplate):
    """The body."""

    IGNORED = frozenset(
        ("user", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
        + ("prompt_cache_options", "reasoning", "stream_options", "max_tool_calls")
    )
    REFUSED = {
        "previous_response_id": _STATELESS,
        "conversation": _STATELESS,
        "prompt": "this server stores no prompts; send the text as input",
        "top_logprobs": "it isn't offered here; /v1/chat/completions has it",
    }
    input: Annotated[
        Annotated[str, Tag("(text)")] | Annotated[list[_Item], Field(fail_fast=True, min_length=1), Tag("(list)")],
        by_type("a text or a list of items"),
    ] = Field(description="a text or a list of items")
    instructions: str | None = Field(None, description="a system's message before the input")
    max_output_tokens: NewTokens | None = Field(None, description="what fits, unless given")
    tools: Annotated[list[FunctionTool], Field(fail_fast=True)] | None = None
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag("(text)")] | Annotated[ChosenFunction, Tag("(object)")],
            by_type("'none', 'auto', 'required', or an object that names a function"),
        ]
        | None
    ) = None
    parallel_tool_calls: bool = True
    text: TextOptions | None = None
    metadata: dict[str, str] | None = None
    truncation: Literal["disabled"] = "disabled"
    background: Literal[False] = False
    include: list[Literal["reasoning.encrypted_content"]] | None = None

    def chat(self) -> dict[str, Any]:
        """Returns the fields of the same request to a chat."""
        made = self.shared_fields() | {
            "messages": self._messages(),
            "parallel_tool_calls": self.parallel_tool_calls,
            "max_completion_tokens": self.max_output_tokens,
        }
        if self.tools is not None:
            kept = {"name", "description", "parameters", "strict"}
            functions = [tool.model_dump(include=kept, exclude_unset=True) for tool in self.tools]
            made["tools"] = [{"type": "function", "function": function} for function in functions]
        choice = self.tool_choice
        if isinstance(choice, ChosenFunction):
            made["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        else:
            made["tool_choice"] = choice
        if self.text is not None and (wanted := self.text.format) is not None:
            schema = {"name": wanted.name, "schema": wanted.content, "strict": wanted.strict}
            made["response_format"] = {"type": wanted.type, "json_schema": schema}
        return made

    def _messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        if self.instructions is not None:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*messages, {"role": "user", "content": self.input}]
        for number, item in enumerate(self.input):
            at = f"input[{number}]"
            if isinstance(item, InputMessage):
                messages.append({"role": item.role, "content": _content(item.content, f"{at}.content")})
            elif isinstance(item, FunctionCallOutput):
                content = _content(item.output, f"{at}.output")
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
            elif isinstance(item, FunctionCall):
                # Calls, and what was said before them, are one message of the model's.
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant"})
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                messages[-1].setdefault("tool_calls", []).append(call)
        return messages


def _content(content: str | list[InputPart | InputPicture], at: str) -> str | list[dict[str, Any]]:
    """Returns a text, or where there are pictures the parts of a chat's message."""
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for number, part in enumerate(content):
        if isinstance(part, InputPicture):
            place = f"{at}[{number}].image_url"
            parts.append({"type": "image_url", "image_url": {"url": part.image_url}, "place": place})
        else:
            parts.append({"type": "text", "text": part.text or part.refusal})
    has_pictures = any(part["type"] == "image_url" for part in parts)
    return parts if has_pictures else "".join(part["text"] for part in parts)
