"""Messages as the text of a model's training format: its Jinja template, in a sandbox of its own process."""

import dataclasses
import functools
import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kanawa.errors import UsageError
from kanawa.guarded_read import UnreadableFileError, guarded_bytes

from kanawa_runtime.data.chats.template_process import MarkedText, TemplateError, TemplateProcesses
from kanawa_runtime.runs.tokenizer_file import CHAT_TEMPLATE

#: The longest of published models takes 30 kB.
MAX_TEMPLATE_BYTES = 2**20
#: To render, and for the process that does to start: published templates take milliseconds.
_SECONDS = 10.0
#: For models that were not trained on conversations: they continue where the messages end.
PLAIN = """{%- for message in messages %}{{ message.content }}
{% endfor %}{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"""
_MARK = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


def turns(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    add_generation_prompt: bool = False,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the variables of one rendering; `extra` are further ones of the template's own."""
    known = {"messages": list(messages), "tools": list(tools) if tools else None, "documents": None}
    return {**dict(extra or {}), **known, "add_generation_prompt": add_generation_prompt}


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A template's source, the texts of special tokens that it may name, and whether it is the model's own."""

    source: str
    tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)
    own: bool = True
    _processes: TemplateProcesses = dataclasses.field(default_factory=TemplateProcesses, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.own:
            check_jinja()
            try:
                self._processes.render(self.source, None, seconds=_SECONDS)
            except TemplateError as error:
                message = f"the chat template can't be read: {error}"
                raise UsageError(message) from error

    @functools.cached_property
    def marks_answers(self) -> bool:
        """Whether the template says which of its text the model writes: it has `{% generation %}`."""
        return _MARK.search(self.source) is not None

    def render(self, variables: Mapping[str, Any]) -> str:
        """Returns what `turns` described as text; raises TemplateError where the template doesn't take it."""
        return self._processes.render(self.source, {**self.tokens, **variables}, seconds=_SECONDS)

    def render_marked(self, variables: Sequence[Mapping[str, Any]], day: str) -> list[MarkedText]:
        """Returns each as text, with what the template marks as generated; raises TemplateError.

        `day` (YYYY-MM-DD) is the template's today.
        """
        asked = [{**self.tokens, **each} for each in variables]
        return self._processes.render_marked(self.source, asked, seconds=_SECONDS, day=day)


def check_jinja() -> None:
    """Raises UsageError, with what to install, where the library of chat templates is missing."""
    if importlib.util.find_spec("jinja2") is None:
        message = 'chat templates are written in Jinja, and jinja2 is not installed: pip install "kanawa[chat]"'
        raise UsageError(message)


def template_of(files: Mapping[str, bytes], chosen: Path | None = None) -> ChatTemplate:
    """Returns the template in `chosen`, else of a tokenizer's folder files, else the plain one.

    Raises UsageError for a template that can't be read, or isn't Jinja.
    """
    settings = json.loads(files.get("tokenizer_config.json", b"{}"))
    tokens = {}
    for role in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = settings.get(role)
        value = value.get("content") if isinstance(value, dict) else value
        tokens[role] = value if isinstance(value, str) else ""
    if chosen is not None:
        written = _read(chosen)
        try:
            return ChatTemplate(written, tokens)
        except UsageError as error:
            error.add_note(f"in {chosen}")
            raise
    source = files[CHAT_TEMPLATE].decode() if CHAT_TEMPLATE in files else settings.get("chat_template")
    if isinstance(source, list):
        # Older folders list several by name; tools have one of their own there.
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default") or named.get("tool_use")
    if isinstance(source, str) and len(source) <= MAX_TEMPLATE_BYTES:
        return ChatTemplate(source, tokens)
    return ChatTemplate(PLAIN, tokens, own=False)


def _read(file: Path) -> str:
    try:
        return guarded_bytes(file, most=MAX_TEMPLATE_BYTES).decode()
    except (OSError, UnreadableFileError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        message = f"can't read the chat template {file}: {reason}"
        raise UsageError(message) from error
