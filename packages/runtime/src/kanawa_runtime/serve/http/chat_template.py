"""Messages as the text of a model's training format: its Jinja template, in a sandbox."""

import dataclasses
import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kanawa.errors import UsageError
from kanawa.guarded_read import guarded_bytes

from kanawa_runtime.serve.http.errors import invalid, unprocessable
from kanawa_runtime.serve.http.protocol import Message, Tool

#: The longest of published models takes 30 kB.
_MAX_TEMPLATE_BYTES = 2**20
#: The longest text of a template; the request itself is limited before.
_MAX_CHARACTERS = 64 * 2**20
#: For models that were not trained on conversations: they continue where the messages end.
PLAIN = """{%- for message in messages %}{{ message.content }}
{% endfor %}{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"""


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A template's source, the texts of special tokens that it may name, and whether it is the model's own."""

    source: str
    tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)
    own: bool = True

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "_compiled", _environment().from_string(self.source))
        except Exception as error:  # Jinja's own errors, and Python's for what it can't compile.
            message = f"the chat template can't be read: {type(error).__name__}: {error}"
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
        try:
            text: str = self._compiled.render(  # type: ignore[attr-defined]
                **{**self.tokens, **dict(extra or {}), **known, "add_generation_prompt": add_generation_prompt}
            )
        except Exception as error:  # An unknown program ran on unknown messages: anything may be raised.
            text_of = f"{type(error).__name__}: {error}" if not isinstance(error, _Refused) else str(error)
            why = f"the model's chat template doesn't take them: {text_of[:500]}"
            raise unprocessable(at="messages", why=why) from error
        if len(text) > _MAX_CHARACTERS:
            why = f"they make {len(text):,} characters, expected at most {_MAX_CHARACTERS:,}"
            raise invalid(at="messages", why=why)
        return text


class _Refused(Exception):
    """A template called raise_exception."""


def _environment() -> Any:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
        del options
        return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)

    def refuse(message: object) -> None:
        raise _Refused(str(message))

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda pattern: datetime.datetime.now().strftime(pattern)
    return environment


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
