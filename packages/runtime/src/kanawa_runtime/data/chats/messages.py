"""Records as conversations: which columns hold what, checked, and in the one form that templates read."""

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kanawa.errors import did_you_mean

from kanawa_runtime.data.records.source import RecordError

#: Who may speak. `developer` is what newer clients call `system`.
ROLES = ("system", "developer", "user", "assistant", "tool")
#: Columns of which a record has one set: a conversation, or a prompt with what completes it.
_FORMS = "messages, or prompt and completion"
#: How other data sets call those who speak, in records of `conversations` with `from` and `value`.
_SPEAKERS = {
    "human": "user", "gpt": "assistant", "chatgpt": "assistant", "bard": "assistant", "bing": "assistant",
    "model": "assistant", "observation": "tool",
}  # fmt: skip


class TextPair(NamedTuple):
    """A prompt and what completes it, as texts that no template touches."""

    prompt: str
    completion: str


class Conversation(NamedTuple):
    """Messages as templates read them; the first `num_prompt` of them are never learned, nor are those `left_out`."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    #: Further variables of the template's own, such as `enable_thinking`.
    extra: Mapping[str, Any] | None = None
    num_prompt: int = 0
    left_out: frozenset[int] = frozenset()


def conversation_of(fields: Mapping[str, Any]) -> Conversation | TextPair:
    """Returns what a record's fields hold; a prompt without completion has an empty one.

    `messages`, or `prompt` and `completion` (both texts, or both lists of messages), with `tools` (a list, or its JSON
    text) and `chat_template_kwargs` (an object). `conversations` are messages with `from` and `value`, and `system`
    may stand before them. An assistant's message of `weight` 0 is read and not learned. Raises RecordError.
    """
    found = {name: value for name, value in fields.items() if value is not None}
    extra = found.get("chat_template_kwargs")
    if extra is not None and not isinstance(extra, Mapping):
        raise RecordError(at="chat_template_kwargs", why=f"expected an object, found {_kind(extra)}")
    tools = _tools(found.get("tools"))
    if "messages" in found:
        return _conversation(messages_of(found["messages"], "messages"), tools, extra)
    if "conversations" in found:
        said = messages_of(found["conversations"], "conversations")
        system = found.get("system")
        if isinstance(system, str) and system and said[0]["role"] != "system":
            said.insert(0, {"role": "system", "content": system})
        return _conversation(said, tools, extra)
    if "prompt" not in found:
        raise RecordError(at="record", why=_no_column(found))
    prompt, completion = found["prompt"], found.get("completion")
    if isinstance(prompt, str):
        if completion is not None and not isinstance(completion, str):
            raise RecordError(at="completion", why=f"expected a text, as prompt is one, found {_kind(completion)}")
        if not prompt and not completion:
            raise RecordError(at="prompt", why="prompt and completion are both empty")
        return TextPair(prompt, completion or "")
    asked = messages_of(prompt, "prompt")
    if completion is None:
        return _conversation(asked, tools, extra, len(asked))
    if isinstance(completion, str):
        raise RecordError(at="completion", why="expected messages, as prompt has them, found a text")
    return _conversation([*asked, *messages_of(completion, "completion")], tools, extra, len(asked))


def _conversation(messages: list[dict[str, Any]], tools: Any, extra: Any, num_prompt: int = 0) -> Conversation:
    weights = [message.pop("weight", 1) for message in messages]
    pairs = enumerate(zip(messages, weights, strict=True))
    left_out = frozenset(i for i, (message, weight) in pairs if message["role"] == "assistant" and weight == 0)
    return Conversation(messages, tools, extra, num_prompt, left_out)


def messages_of(value: Any, at: str) -> list[dict[str, Any]]:
    """Returns messages as templates read them; raises RecordError for what isn't a list of them."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise RecordError(at=at, why=f"expected a list of messages, found {_kind(value)}")
    if not value:
        raise RecordError(at=at, why="expected at least one message, found an empty list")
    return [_checked(message, f"{at}[{index}]") for index, message in enumerate(value)]


def for_template(message: Mapping[str, Any], at: str) -> dict[str, Any]:
    """Returns a message with its content as one text and the arguments of calls as objects; raises RecordError.

    Fields that are none are left out: columns of tables have all fields of all messages.
    """
    made = {name: value for name, value in message.items() if value is not None}
    made["content"] = _text(made.get("content"), f"{at}.content")
    if made.get("role") == "developer":
        made["role"] = "system"
    if "tool_calls" in made:
        made["tool_calls"] = [_call(call, f"{at}.tool_calls[{place}]") for place, call in enumerate(made["tool_calls"])]
    return made


def _checked(message: Any, at: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RecordError(at=at, why=f"expected an object with role and content, found {_kind(message)}")
    if "role" not in message and {"from", "value"} <= message.keys():
        message = _renamed(message, at)
    if "role" not in message:
        keys = ", ".join(map(str, message)) or "none"
        raise RecordError(at=at, why=f"expected role and content, or from and value, found the keys {keys}")
    role = message["role"]
    if role not in ROLES:
        near = did_you_mean(role, ROLES) if isinstance(role, str) else ""
        raise RecordError(at=f"{at}.role", why=f"found {role!r}, expected one of {', '.join(ROLES)}{near}")
    if message.get("content") is None and not message.get("tool_calls"):
        raise RecordError(at=f"{at}.content", why="expected a text; only an assistant that calls tools may have none")
    if not isinstance(message.get("tool_calls") or [], list | tuple):
        raise RecordError(at=f"{at}.tool_calls", why=f"expected a list, found {_kind(message['tool_calls'])}")
    weight = message.get("weight")
    if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
        raise RecordError(at=f"{at}.weight", why=f"found {weight!r}, expected 0 (not learned) or 1")
    if weight and role != "assistant":
        raise RecordError(at=f"{at}.weight", why=f"only what the assistant says is learned; leave it out of a {role}'s")
    return for_template(message, at)


def _renamed(message: Mapping[str, Any], at: str) -> dict[str, Any]:
    """Returns a message of `from` and `value` as one of `role` and `content`."""
    speaker = message["from"]
    role = _SPEAKERS.get(speaker, speaker) if isinstance(speaker, str) else speaker
    if role not in ROLES:
        known = ", ".join([*ROLES, *_SPEAKERS])
        hint = "; write the call as an assistant's message with role and tool_calls" if role == "function_call" else ""
        raise RecordError(at=f"{at}.from", why=f"found {speaker!r}, expected one of {known}{hint}")
    rest = {name: value for name, value in message.items() if name not in ("from", "value")}
    return {"role": role, "content": message["value"], **rest}


def _text(content: Any, at: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise RecordError(at=at, why=f"expected a text or a list of its parts, found {_kind(content)}")
    parts = []
    for place, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            kind = part.get("type", "no type") if isinstance(part, Mapping) else _kind(part)
            raise RecordError(at=f"{at}[{place}]", why=f"expected a part of type text, found {kind}")
        parts.append(text)
    return "".join(parts)


def _call(call: Any, at: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RecordError(at=at, why="expected an object whose function has a name and arguments")
    arguments = function.get("arguments")
    if not isinstance(arguments, Mapping):
        try:
            arguments = json.loads(arguments or "{}")
        except (TypeError, ValueError, RecursionError) as error:
            raise RecordError(
                at=f"{at}.function.arguments", why=f"expected the text of a JSON object: {error}"
            ) from error
    # Columns of tables have the arguments of all calls.
    given = arguments if not isinstance(arguments, Mapping) else {k: v for k, v in arguments.items() if v is not None}
    return {**call, "function": {**function, "arguments": given}}


def _tools(value: Any) -> list[Mapping[str, Any]] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except ValueError as error:
            raise RecordError(at="tools", why=f"expected a list of tools, or its JSON text: {error}") from error
    if value is None:
        return None
    if not isinstance(value, Sequence) or not all(isinstance(tool, Mapping) for tool in value):
        raise RecordError(at="tools", why=f"expected a list of objects, found {_kind(value)}")
    return list(value) or None


def _no_column(found: Mapping[str, Any]) -> str:
    names = ", ".join(found) or "none"
    near = [other for name in ("messages", "prompt") for other in difflib.get_close_matches(name, found, n=1)]
    hint = f"; rename {near[0]}, if it is meant as such" if near else ""
    if "text" in found:
        hint = "; text alone is learned whole, without --modify sft, or in part, by rollouts.prompt_tokens"
    return f"expected the columns {_FORMS}; found {names}{hint}"


def _kind(value: Any) -> str:
    """Returns what a value is, as JSON calls it, and its beginning."""
    names = {
        str: "a text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
    }
    return f"{names.get(type(value), type(value).__name__)} ({str(value)[:40]!r})"
