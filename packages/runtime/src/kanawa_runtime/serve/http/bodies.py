"""The requests that a server lays its limits over; loads without JAX, as another process reads long ones."""

from collections.abc import Callable

from kanawa_runtime.serve.engine.request import EngineLimits
from kanawa_runtime.serve.http.config import ServerConfig
from kanawa_runtime.serve.http.messages_request import CountRequest, MessagesRequest
from kanawa_runtime.serve.http.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    chat_request,
    completion_request,
    detokenize_request,
    tokenize_request,
)
from kanawa_runtime.serve.http.responses_request import ResponsesRequest
from kanawa_runtime.serve.http.validation import Fields

LIMITED: dict[type[Fields], Callable[[EngineLimits, ServerConfig], type[Fields]]] = {
    CompletionRequest: completion_request,
    ChatRequest: chat_request,
    TokenizeRequest: lambda _, config: tokenize_request(config),
    DetokenizeRequest: lambda limits, _: detokenize_request(limits),
    # What these translate to is bounded as a chat is.
    ResponsesRequest: lambda *_: ResponsesRequest,
    MessagesRequest: lambda *_: MessagesRequest,
    CountRequest: lambda *_: CountRequest,
}


def limited_request(kind: str, limits: EngineLimits, config: ServerConfig) -> type[Fields]:
    """Returns the body of a kind of request, by its name in `LIMITED`, with a server's limits."""
    return next(made(limits, config) for one, made in LIMITED.items() if one.__name__ == kind)
