"""`/v1/messages` and `/v1/messages/count_tokens`: a chat's answer as Anthropic's blocks, whole or in its events.

Source: Anthropic's API reference, "Messages", "Streaming Messages" and "Errors".
"""

import json
from collections.abc import Iterator
from typing import Any

from kanawa_runtime.serve.http.chat import Chat
from kanawa_runtime.serve.http.errors import ApiError
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.generation import Generation
from kanawa_runtime.serve.http.messages_request import CountRequest, MessagesRequest
from kanawa_runtime.serve.http.route import ANSWERS, EVENTS, JSON, TAKES, Operation
from kanawa_runtime.serve.http.service import Service
from kanawa_runtime.serve.http.translated import Block, Change, Ending, TranslatedEndpoint, own_names, translated

#: Anthropic's names of errors where they differ from OpenAI's; any other 4xx is an invalid request.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_FIELDS = {"max_completion_tokens": "max_tokens", "response_format": "output_config.format", "stop": "stop_sequences"}


def routes(service: Service) -> Iterator[Operation]:
    """Yields the routes of a model that writes texts."""
    if not service.model.writes:
        return
    chat, path = Chat(service), "/v1/messages"
    whole, count, error = Messages(chat), TokenCounts(chat), error_of_messages
    counts = (*TAKES, 404, 422, 503)
    yield Operation("POST", path, "Answer messages", whole, "api", whole.body, (JSON, EVENTS), ANSWERS, error)
    about = "Count the tokens of messages"
    yield Operation("POST", f"{path}/count_tokens", about, count, "api", count.body, (JSON,), counts, error)


def error_of_messages(error: ApiError) -> dict[str, Any]:
    """Returns an error as Anthropic's clients read it; the message names the field."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


class Messages(TranslatedEndpoint[MessagesRequest]):
    """The endpoint."""

    fields = _FIELDS

    def __init__(self, chat: Chat) -> None:
        super().__init__(chat, MessagesRequest)

    def writer(self, request: MessagesRequest, generation: Generation) -> "MessageWriter":
        """Returns what writes the answer."""
        return MessageWriter(generation)


class TokenCounts:
    """Answers with the number of a conversation's tokens."""

    body = CountRequest

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    async def __call__(self, exchange: Exchange) -> None:
        """Answers a request."""
        chat = self._chat
        chat.service.check_ready()
        request = await translated(chat, CountRequest, exchange, _FIELDS)
        chat.service.adapter(request.chat.model)
        with own_names(_FIELDS):
            ids = await chat.service.in_worker(exchange, chat.prompt, request.chat)
        await exchange.answer({"input_tokens": len(ids)})


class MessageWriter:
    """Writes one message."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def begin(self) -> list[dict[str, Any]]:
        """Returns the event of a message without blocks."""
        message = self._message([]) | {"usage": self._usage() | {"output_tokens": 0}}
        return [{"type": "message_start", "message": message}]

    def change(self, change: Change) -> list[dict[str, Any]]:
        """Returns the event of a block."""
        kind, block, gained = change
        if kind == "begin":
            empty = {"type": "text", "text": ""} if block.name is None else _block(block, {})
            return [{"type": "content_block_start", "index": block.index, "content_block": empty}]
        if kind == "end":
            return [{"type": "content_block_stop", "index": block.index}]
        text = {"type": "text_delta", "text": gained}
        delta = text if block.name is None else {"type": "input_json_delta", "partial_json": gained}
        return [{"type": "content_block_delta", "index": block.index, "delta": delta}]

    def end(self, blocks: list[Block], ending: Ending) -> list[dict[str, Any]]:
        """Returns the events of the end."""
        return [
            {"type": "message_delta", "delta": _stop(ending), "usage": self._usage()},
            {"type": "message_stop"},
        ]

    def fail(self, error: ApiError) -> dict[str, Any]:
        """Returns the event of a failure."""
        return error_of_messages(error)

    def whole(self, blocks: list[Block], ending: Ending) -> dict[str, Any]:
        """Returns the message."""
        content = [_block(block, _arguments(block)) for block in blocks]
        return self._message(content) | _stop(ending) | {"usage": self._usage()}

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        generation = self._generation
        head = {"id": f"msg_{generation.id.rpartition('-')[2]}", "type": "message", "role": "assistant"}
        return head | {"model": generation.model, "content": content, "stop_reason": None, "stop_sequence": None}

    def _usage(self) -> dict[str, Any]:
        usage = self._generation.usage()
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        # Here the tokens of the input are those that were not cached.
        return {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
        }


def _stop(ending: Ending) -> dict[str, Any]:
    reason = "stop_sequence" if ending.stopped_by is not None else _REASONS.get(ending.reason, ending.reason)
    return {"stop_reason": reason, "stop_sequence": ending.stopped_by}


def _block(block: Block, arguments: Any) -> dict[str, Any]:
    if block.name is None:
        return {"type": "text", "text": block.text}
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": arguments}


def _arguments(block: Block) -> Any:
    """Returns the arguments of a call; those of one that was cut off aren't JSON, and none."""
    try:
        return {} if block.name is None else json.loads(block.text or "{}")
    except (ValueError, RecursionError):
        return {}
