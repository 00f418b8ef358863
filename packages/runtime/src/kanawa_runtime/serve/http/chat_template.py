"""Messages as the text of a model's training format: its Jinja template, in a sandbox of its own process."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kanawa.errors import UsageError
from kanawa.guarded_read import guarded_bytes

from kanawa_runtime.serve.http.errors import invalid, unprocessable
from kanawa_runtime.serve.http.protocol import Message, Tool
from kanawa_runtime.serve.http.template_process import TemplateError, TemplateProcesses

#: The longest of published models takes 30 kB.
_MAX_TEMPLATE_BYTES = 2**20
#: To render, and for the process that does to start: published templates take milliseconds.
_SECONDS = 10.0
#: For models that were not trained on conversations: they continue where the messages end.
PLAIN = """{%- for message in messages %}{{ message.content }}
{% endfor %}{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"""


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A template's source, the texts of special tokens that it may name, and whether it is the model's own."""

    source: str
    tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)
    own: bool = True
    _processes: TemplateProcesses = dataclasses.field(default_factory=TemplateProcesses, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.own:
            try:
                self._processes.render(self.source, None, seconds=_SECONDS)
            except TemplateError as error:
                message = f"the chat template can't be read: {error}"
                raise UsageError(message) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """Returns the conversation as text; raises the 422 of messages that the template doesn't take."""
        known = {"messages": list(messages), "tools": list(tools) if tools else None, "documents": None}
        variables = {**self.tokens, **dict(extra or {}), **known, "add_generation_prompt": add_generation_prompt}
        try:
            return self._processes.render(self.source, variables, seconds=_SECONDS)
        except TemplateError as error:
            why = f"the model's chat template doesn't take them: {error}"
            raise unprocessable(at="messages", why=why) from error


def template_of(files: Mapping[str, bytes], chosen: Path | None = None) -> ChatTemplate:
    """Returns the template in `chosen`, else of a tokenizer's folder files, else the plain one.

    Raises UsageError for a template that isn't Jinja.
    """
    settings = json.loads(files.get("tokenizer_config.json", b"{}"))
    tokens = {}
    for role in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = settings.get(role)
        value = value.get("content") if isinstance(value, dict) else value
        tokens[role] = value if isinstance(value, str) else ""
    if chosen is not None:
        return ChatTemplate(guarded_bytes(chosen, most=_MAX_TEMPLATE_BYTES).decode(), tokens)
    source = files["chat_template.jinja"].decode() if "chat_template.jinja" in files else settings.get("chat_template")
    if isinstance(source, list):
        # Older folders list several by name; tools have one of their own there.
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default") or named.get("tool_use")
    if isinstance(source, str) and len(source) <= _MAX_TEMPLATE_BYTES:
        return ChatTemplate(source, tokens)
    return ChatTemplate(PLAIN, tokens, own=False)


def messages_for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Returns messages as templates read them: content as one text, arguments of calls as objects."""
    return [_for_template(message, f"messages[{index}]") for index, message in enumerate(messages)]


def tools_for_template(tools: Sequence[Tool] | None) -> list[dict[str, Any]] | None:
    """Returns tools as the client sent them."""
    return None if tools is None else [tool.model_dump(exclude_unset=True) for tool in tools]


def _for_template(message: Message, at: str) -> dict[str, Any]:
    made = message.model_dump(exclude_none=True)
    content = message.content
    made["content"] = "".join(part.text for part in content) if isinstance(content, list) else content or ""
    if message.role == "developer":
        made["role"] = "system"
    for place, call in enumerate(made.get("tool_calls", ())):
        try:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"] or "{}")
        except (ValueError, RecursionError) as error:
            why = f"expected the text of a JSON object: {error}"
            raise invalid(at=f"{at}.tool_calls[{place}].function.arguments", why=why) from error
    return made
