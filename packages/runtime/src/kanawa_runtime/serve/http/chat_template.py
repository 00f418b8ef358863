"""A request's messages and tools as templates read them, and the refusals of a template."""

from collections.abc import Mapping, Sequence
from typing import Any

from kanawa_runtime.data.chats.messages import for_template
from kanawa_runtime.data.chats.picture_marks import PICTURE
from kanawa_runtime.data.chats.template import ChatTemplate, turns
from kanawa_runtime.data.chats.template_process import TemplateError
from kanawa_runtime.data.records.source import RecordError
from kanawa_runtime.serve.http.errors import invalid, unprocessable
from kanawa_runtime.serve.http.protocol import Message, PicturePart, Tool


def rendered(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    add_generation_prompt: bool = True,
    extra: Mapping[str, Any] | None = None,
) -> str:
    """Returns the conversation as text; raises the 422 of messages that the template doesn't take."""
    try:
        return template.render(turns(messages, tools, add_generation_prompt=add_generation_prompt, extra=extra))
    except TemplateError as error:
        why = f"the model's chat template doesn't take them: {error}"
        raise unprocessable(at="messages", why=why) from error


def messages_for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Returns messages as templates read them: content as one text, arguments of calls as objects.

    Content with pictures is a list of parts (`PictureMarks.for_template`).
    """
    made = []
    try:
        for index, message in enumerate(messages):
            fields = message.model_dump(exclude_none=True)
            parts = message.content if isinstance(message.content, list) else []
            if any(isinstance(part, PicturePart) for part in parts):
                fields["content"] = ""
            made.append(for_template(fields, f"messages[{index}]"))
            if fields.get("content") == "" and parts:
                made[-1]["content"] = [
                    dict(PICTURE) if isinstance(part, PicturePart) else {"type": "text", "text": part.text}
                    for part in parts
                ]
        return made
    except RecordError as error:
        raise invalid(at=error.at, why=error.why) from error


def tools_for_template(tools: Sequence[Tool] | None) -> list[dict[str, Any]] | None:
    """Returns tools as the client sent them."""
    return None if tools is None else [tool.model_dump(exclude_unset=True) for tool in tools]
