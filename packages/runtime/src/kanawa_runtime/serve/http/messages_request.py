"""The body of `/v1/messages`, and the chat that it is: blocks as messages, tools and choices in chat's words.

Source: Anthropic's API reference, "Create a Message".
"""

import json
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from kanawa_runtime.serve.http.protocol import ConversationTemplate, NamedFunction, NewTokens, SampledRequest
from kanawa_runtime.serve.http.validation import Fields, Name, by_type, wrong_field

_CACHED = frozenset(("cache_control",))
_KINDS = {
    "text": "(text)", "tool_use": "(use)", "tool_result": "(result)", "thinking": "(past)",
    "redacted_thinking": "(past)", "image": "(picture)",
}  # fmt: skip


def _kind_of_block(block: Any, allowed: Collection[str] = tuple(_KINDS)) -> str | None:
    kind = block.get("type") if isinstance(block, dict) else None
    return _KINDS.get(kind) if isinstance(kind, str) and kind in allowed else None


class TextBlock(Fields):
    """A text."""

    IGNORED = _CACHED | {"citations"}
    type: Literal["text"]
    text: str


class Base64Source(Fields):
    """A picture's bytes."""

    type: Literal["base64"]
    media_type: Annotated[str, Field(max_length=64)]
    data: str


class UrlSource(Fields):
    """Where a picture is."""

    type: Literal["url"]
    url: str


def _kind_of_source(source: Any) -> str | None:
    kind = source.get("type") if isinstance(source, dict) else None
    return {"base64": "(base64)", "url": "(url)"}.get(kind) if isinstance(kind, str) else None


class PictureBlock(Fields):
    """A picture."""

    IGNORED = _CACHED
    type: Literal["image"]
    source: Annotated[
        Annotated[Base64Source, Tag("(base64)")] | Annotated[UrlSource, Tag("(url)")],
        Discriminator(_kind_of_source, "kind", "Input should be an object of type base64 or url"),
    ]

    @property
    def url(self) -> str:
        """Its address, or its bytes as a data URL."""
        source = self.source
        return source.url if isinstance(source, UrlSource) else f"data:{source.media_type};base64,{source.data}"


#: A text, or its blocks.
Texts = Annotated[
    Annotated[str, Tag("(text)")] | Annotated[list[TextBlock], Field(fail_fast=True), Tag("(list)")],
    by_type("a text or a list of text blocks"),
]


_Shown = Annotated[
    Annotated[TextBlock, Tag("(text)")] | Annotated[PictureBlock, Tag("(picture)")],
    Discriminator(lambda block: _kind_of_block(block, ("text", "image")), "kind", "Input should be a text or an image"),
]


class ToolUse(Fields):
    """A call that the model made earlier."""

    IGNORED = _CACHED | {"caller", "toolset_name"}
    type: Literal["tool_use"]
    id: Name
    name: Name
    input: dict[str, Any] = {}


class ToolResult(Fields):
    """What a call returned."""

    IGNORED = _CACHED | {"toolset_name", "is_error"}
    type: Literal["tool_result"]
    tool_use_id: Name
    content: Annotated[
        Annotated[str, Tag("(text)")] | Annotated[list[_Shown], Field(fail_fast=True), Tag("(list)")],
        by_type("a text or a list of blocks"),
    ] = ""


class PastThinking(Fields):
    """What another model thought, which no template here shows."""

    IGNORED = _CACHED | {"thinking", "signature", "data"}
    type: Literal["thinking", "redacted_thinking"]


_Block = Annotated[
    Annotated[TextBlock, Tag("(text)")]
    | Annotated[ToolUse, Tag("(use)")]
    | Annotated[ToolResult, Tag("(result)")]
    | Annotated[PastThinking, Tag("(past)")]
    | Annotated[PictureBlock, Tag("(picture)")],
    Discriminator(_kind_of_block, "kind", f"Input should be a block of one of the types {', '.join(_KINDS)}"),
]


class MessageOfBlocks(Fields):
    """What one side said."""

    role: Literal["user", "assistant"]
    content: Annotated[
        Annotated[str, Tag("(text)")] | Annotated[list[_Block], Field(fail_fast=True), Tag("(list)")],
        by_type("a text or a list of blocks"),
    ]

    @model_validator(mode="after")
    def _check_roles(self) -> Self:
        wrong, other = (ToolResult, "user") if self.role == "assistant" else (ToolUse, "assistant")
        for place, block in enumerate(self.content):
            if isinstance(block, wrong):
                why = f"a {block.type} belongs to a message of the {other}"
                raise wrong_field(at=f"content[{place}]", why=why)
        return self


class ClientTool(NamedFunction):
    """A tool that the client has."""

    IGNORED = _CACHED | {
        "allowed_callers", "defer_loading", "eager_input_streaming", "input_examples", "strict"
    }  # fmt: skip
    type: Literal["custom"] = "custom"
    description: str | None = None
    input_schema: dict[str, Any]


class ToolChoice(Fields):
    """Whether a tool has to be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if (self.type == "tool") != (self.name is not None):
            raise wrong_field(at="name", why="the type tool needs the name of one, and no other type takes it")
        return self


class OutputFormat(Fields):
    """The JSON that an answer has to be."""

    type: Literal["json_schema"]
    content: dict[str, Any] = Field(alias="schema", description="a JSON schema")


class OutputConfig(Fields):
    """The form of an answer."""

    IGNORED = frozenset(("effort", "task_budget"))
    format: OutputFormat | None = None


class CountRequest(SampledRequest, ConversationTemplate):
    """The body of `/v1/messages/count_tokens`, and what that of `/v1/messages` has in common with it."""

    IGNORED = frozenset(
        ("thinking", "service_tier", "metadata", "cache_control", "context_management", "inference_geo", "betas")
        + ("speed", "diagnostics", "user_profile_id", "workspace_id")
    )
    REFUSED = {
        "container": "this server runs no code; give tools of the client's own",
        "mcp_servers": "this server calls no others; give tools of the client's own",
        "prefill": "an answer can't be begun here; leave it out",
    }
    messages: Annotated[list[MessageOfBlocks], Field(fail_fast=True, min_length=1, description="a list of messages")]
    system: Texts | None = None
    tools: Annotated[list[ClientTool], Field(fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None

    @model_validator(mode="after")
    def _check_last(self) -> Self:
        if self.messages[-1].role == "assistant":
            why = "the last message has to be the user's: an answer that the assistant has begun isn't continued here"
            raise wrong_field(at=f"messages[{len(self.messages) - 1}].role", why=why)
        return self

    def chat(self) -> dict[str, Any]:
        """Returns the fields of the same request to a chat."""
        choice = self.tool_choice or ToolChoice(type="auto")
        plain = {"auto": None, "any": "required", "none": "none"}
        named = {"type": "function", "function": {"name": choice.name}}
        made = self.shared_fields() | {
            "messages": self._messages(),
            "parallel_tool_calls": not choice.disable_parallel_tool_use,
            "tool_choice": plain.get(choice.type, named),
        }
        if self.tools is not None:
            made["tools"] = [{"type": "function", "function": _function(tool)} for tool in self.tools]
        if self.output_config is not None and self.output_config.format is not None:
            schema = {"schema": self.output_config.format.content}
            made["response_format"] = {"type": "json_schema", "json_schema": schema}
        return made

    def _messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        if self.system is not None:
            messages.append({"role": "system", "content": _text(self.system)})
        for number, message in enumerate(self.messages):
            at = f"messages[{number}].content"
            if isinstance(message.content, str):
                messages.append({"role": message.role, "content": message.content})
                continue
            # Results answer the calls before them, whatever the user says besides.
            is_result = [isinstance(block, ToolResult) for block in message.content]
            for place, result in enumerate(message.content):
                if isinstance(result, ToolResult):
                    content = _content(result.content, f"{at}[{place}].content")
                    messages.append({"role": "tool", "tool_call_id": result.tool_use_id, "content": content})
            uses = [_call(block) for block in message.content if isinstance(block, ToolUse)]
            has_said = any(isinstance(block, TextBlock | PictureBlock) for block in message.content)
            if has_said or uses or not any(is_result):
                calls = {"tool_calls": uses} if uses else {}
                messages.append({"role": message.role, "content": _content(message.content, at), **calls})
        return messages


class MessagesRequest(CountRequest):
    """The body of `/v1/messages`."""

    max_tokens: NewTokens = Field(description="the most tokens of the answer")
    stop_sequences: list[str] = []

    def chat(self) -> dict[str, Any]:
        """Returns the fields of the same request to a chat."""
        return super().chat() | {"max_completion_tokens": self.max_tokens, "stop": self.stop_sequences}


def _text(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


def _content(content: str | Sequence[Fields], at: str) -> str | list[dict[str, Any]]:
    """Returns the texts as one, or where there are pictures the parts of a chat's message."""
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for number, block in enumerate(content):
        if isinstance(block, PictureBlock):
            place = f"{at}[{number}].source"
            parts.append({"type": "image_url", "image_url": {"url": block.url}, "place": place})
        elif isinstance(block, TextBlock):
            parts.append({"type": "text", "text": block.text})
    has_pictures = any(part["type"] == "image_url" for part in parts)
    return parts if has_pictures else "".join(part["text"] for part in parts)


def _function(tool: ClientTool) -> dict[str, Any]:
    described = {} if tool.description is None else {"description": tool.description}
    return {"name": tool.name, **described, "parameters": tool.input_schema}


def _call(block: ToolUse) -> dict[str, Any]:
    function = {"name": block.name, "arguments": json.dumps(block.input)}
    return {"id": block.id, "type": "function", "function": function}
