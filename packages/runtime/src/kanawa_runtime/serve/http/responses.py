"""`/v1/responses`: a chat's answer as OpenAI's items, whole or in its events.

Source: OpenAI's API reference, "Responses" and "Streaming events". No answer is stored.
"""

from collections.abc import Iterator
from typing import Any

from kanawa_runtime.serve.http.chat import Chat
from kanawa_runtime.serve.http.errors import ApiError
from kanawa_runtime.serve.http.generation import Generation
from kanawa_runtime.serve.http.responses_request import ChosenFunction, ResponsesRequest
from kanawa_runtime.serve.http.route import ANSWERS, EVENTS, JSON, Operation
from kanawa_runtime.serve.http.service import Service
from kanawa_runtime.serve.http.translated import Block, Change, Ending, TranslatedEndpoint

_PLAIN = {"format": {"type": "text"}}
#: Why an answer is incomplete.
_CUT_OFF = {"length": "max_output_tokens", "abort": "abort"}


def routes(service: Service) -> Iterator[Operation]:
    """Yields the route of a model that writes texts."""
    if service.model.writes:
        made = Responses(Chat(service))
        yield Operation("POST", "/v1/responses", "Answer items", made, "api", made.body, (JSON, EVENTS), ANSWERS)


class Responses(TranslatedEndpoint[ResponsesRequest]):
    """The endpoint."""

    fields = {
        "messages": "input",
        "max_completion_tokens": "max_output_tokens",
        "response_format": "text.format",
    }

    def __init__(self, chat: Chat) -> None:
        super().__init__(chat, ResponsesRequest)

    def writer(self, request: ResponsesRequest, generation: Generation) -> "ResponseWriter":
        """Returns what writes the answer."""
        return ResponseWriter(request, generation)


class ResponseWriter:
    """Writes one response."""

    def __init__(self, request: ResponsesRequest, generation: Generation) -> None:
        self._request = request
        self._generation = generation
        self._key = generation.id.rpartition("-")[2]
        self._count = 0

    def begin(self) -> list[dict[str, Any]]:
        """Returns the events of a response without items."""
        response = self._response("in_progress", [])
        return [self._event(name, response=response) for name in ("response.created", "response.in_progress")]

    def change(self, change: Change) -> list[dict[str, Any]]:
        """Returns the events of an item."""
        kind, block, gained = change
        place = {"item_id": self._item_id(block), "output_index": block.index}
        if block.name is not None:
            return self._change_call(kind, block, gained, place)
        part = {**place, "content_index": 0}
        if kind == "begin":
            added = self._item(block, "in_progress") | {"content": []}
            return [
                self._event("response.output_item.added", output_index=block.index, item=added),
                self._event("response.content_part.added", **part, part=_part(block)),
            ]
        if kind == "grow":
            return [self._event("response.output_text.delta", **part, delta=gained, logprobs=[])]
        return [
            self._event("response.output_text.done", **part, text=block.text, logprobs=[]),
            self._event("response.content_part.done", **part, part=_part(block)),
            self._event("response.output_item.done", output_index=block.index, item=self._item(block)),
        ]

    def end(self, blocks: list[Block], ending: Ending) -> list[dict[str, Any]]:
        """Returns the event of the whole response."""
        response = self.whole(blocks, ending)
        return [self._event(f"response.{response['status']}", response=response)]

    def fail(self, error: ApiError) -> dict[str, Any]:
        """Returns the event of a failure."""
        failure = {"code": "server_error", "message": str(error)}
        return self._event("response.failed", response=self._response("failed", []) | {"error": failure})

    def whole(self, blocks: list[Block], ending: Ending) -> dict[str, Any]:
        """Returns the response."""
        reason = _CUT_OFF.get(ending.reason)
        status = "completed" if reason is None else "incomplete"
        # What was cut off is the last item.
        items = [self._item(block, status if block is blocks[-1] else "completed") for block in blocks]
        details = None if reason is None else {"reason": reason}
        return self._response(status, items) | {"incomplete_details": details, "usage": self._usage()}

    def _change_call(self, kind: str, block: Block, gained: str, place: dict[str, Any]) -> list[dict[str, Any]]:
        if kind == "begin":
            item = self._item(block, "in_progress")
            return [self._event("response.output_item.added", output_index=block.index, item=item)]
        name = "response.function_call_arguments"
        if kind == "grow":
            return [self._event(f"{name}.delta", **place, delta=gained)]
        return [
            self._event(f"{name}.done", **place, name=block.name, arguments=block.text),
            self._event("response.output_item.done", output_index=block.index, item=self._item(block)),
        ]

    def _item_id(self, block: Block) -> str:
        return f"{'msg' if block.name is None else 'fc'}_{self._key}_{block.index}"

    def _item(self, block: Block, status: str = "completed") -> dict[str, Any]:
        item: dict[str, Any] = {"id": self._item_id(block), "status": status}
        if block.name is None:
            return item | {"type": "message", "role": "assistant", "content": [_part(block)]}
        call = {"type": "function_call", "call_id": block.call_id, "name": block.name}
        return item | call | {"arguments": block.text}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._count += 1
        return {"type": kind, "sequence_number": self._count - 1} | fields

    def _usage(self) -> dict[str, Any]:
        usage = self._generation.usage()
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        request, generation = self._request, self._generation
        sampling = generation.choices[0].request.sampling
        text, choice = request.text, request.tool_choice
        return {
            "id": f"resp_{self._key}",
            "object": "response",
            "created_at": generation.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": generation.model,
            "output": output,
            "parallel_tool_calls": request.parallel_tool_calls,
            "previous_response_id": None,
            "store": False,
            "temperature": sampling.temperature,
            "text": _PLAIN if text is None else text.model_dump(by_alias=True, exclude_none=True),
            "tool_choice": choice.model_dump() if isinstance(choice, ChosenFunction) else choice or "auto",
            "tools": [tool.model_dump(exclude_unset=True) for tool in request.tools or ()],
            "top_p": sampling.top_p,
            "truncation": request.truncation,
            "usage": None,
        }


def _part(block: Block) -> dict[str, Any]:
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}
