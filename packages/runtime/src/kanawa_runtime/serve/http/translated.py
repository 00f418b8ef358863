"""Other protocols' conversations: each request is a chat, whose answer is written in blocks of text and calls."""

import abc
import contextlib
import dataclasses
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from pydantic import ValidationError

from kanawa_runtime.serve.engine.request import Grammar
from kanawa_runtime.serve.http.chat import Chat
from kanawa_runtime.serve.http.choice import Choice, Piece
from kanawa_runtime.serve.http.errors import ApiError
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.generation import Generation, TextEndpoint
from kanawa_runtime.serve.http.protocol import ChatRequest, Structure
from kanawa_runtime.serve.http.tool_calls import CallReader
from kanawa_runtime.serve.http.validation import bad_request


@dataclasses.dataclass
class Block:
    """A text; or a call of the function `name`, whose arguments are `text`, as JSON."""

    index: int
    text: str = ""
    name: str | None = None
    call_id: str = ""


#: What happened to a block, and what it gained.
Change = tuple[Literal["begin", "grow", "end"], Block, str]


class Blocks:
    """The blocks of one answer, as a chat's deltas add to them."""

    def __init__(self) -> None:
        self.made: list[Block] = []

    def take(self, deltas: Iterable[Mapping[str, Any]]) -> Iterator[Change]:
        """Yields what deltas change; a block ends where another begins."""
        for delta in deltas:
            if delta.get("content"):
                if not self.made or self.made[-1].name is not None:
                    yield from self._begin()
                yield self._grow(delta["content"])
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    yield from self._begin(call["function"]["name"], call["id"])
                if call["function"]["arguments"]:
                    yield self._grow(call["function"]["arguments"])

    def finish(self) -> Iterator[Change]:
        """Yields the end of the last block."""
        if self.made:
            yield "end", self.made[-1], ""

    def _begin(self, name: str | None = None, call_id: str = "") -> Iterator[Change]:
        yield from self.finish()
        self.made.append(Block(len(self.made), "", name, call_id))
        yield "begin", self.made[-1], ""

    def _grow(self, text: str) -> Change:
        self.made[-1].text += text
        return "grow", self.made[-1], text


@dataclasses.dataclass(frozen=True)
class Ending:
    """Why an answer ended: "stop", "length", "tool_calls" or "abort"; and the text that stopped it, if one did."""

    reason: str
    stopped_by: str | None


class AnswerWriter(Protocol):
    """Writes one answer as its protocol has it."""

    def begin(self) -> list[dict[str, Any]]:
        """Returns the events before the first block."""

    def change(self, change: Change) -> list[dict[str, Any]]:
        """Returns the events of a change."""

    def end(self, blocks: list[Block], ending: Ending) -> list[dict[str, Any]]:
        """Returns the last events."""

    def fail(self, error: ApiError) -> dict[str, Any]:
        """Returns the event of an answer that failed after it had begun."""

    def whole(self, blocks: list[Block], ending: Ending) -> dict[str, Any]:
        """Returns the whole response."""


class Translatable(Protocol):
    """A request that is a chat in other words."""

    @property
    def priority(self) -> int:
        """As `Asked`."""

    @property
    def stream(self) -> bool:
        """As `Asked`."""

    def chat(self) -> dict[str, Any]:
        """Returns the fields of the same request to a chat."""


Body = TypeVar("Body", bound=Translatable)


@dataclasses.dataclass(frozen=True)
class Translated(Generic[Body]):
    """A request, and the same as a chat."""

    body: Body
    chat: ChatRequest

    @property
    def priority(self) -> int:
        """As `Asked`."""
        return self.body.priority

    @property
    def stream(self) -> bool:
        """As `Asked`."""
        return self.body.stream


class TranslatedEndpoint(TextEndpoint[Translated[Body]], Generic[Body]):
    """Answers the requests of a protocol by a chat; `fields` are the names of chat's fields that are others here."""

    has_named_events = True
    fields: ClassVar[Mapping[str, str]] = {}

    def __init__(self, chat: Chat, body: type[Body]) -> None:
        super().__init__(chat.service, body)
        self._chat = chat

    @abc.abstractmethod
    def writer(self, request: Body, generation: Generation) -> AnswerWriter:
        """Returns what writes the answer."""

    async def read(self, exchange: Exchange) -> Translated[Body]:
        """Returns the request; raises its ApiError in this protocol's names."""
        return await translated(self._chat, self.body, exchange, self.fields, is_queued=True)

    def structure(self, request: Translated[Body]) -> Structure | None:
        """As a chat's."""
        with own_names(self.fields):
            return self._chat.structure(request.chat)

    def num_logprobs(self, request: Translated[Body]) -> int:
        """Returns 0: these protocols' answers hold none here."""
        return 0

    def generation(self, exchange: Exchange, request: Translated[Body], grammar: Grammar | None) -> Generation:
        """As a chat's."""
        with own_names(self.fields):
            return self._chat.generation(exchange, request.chat, grammar)

    def whole(self, request: Translated[Body], generation: Generation, pieces: list[Piece]) -> dict[str, Any]:
        """Returns the response."""
        (choice,), (piece,) = generation.choices, pieces
        blocks, reader = Blocks(), CallReader(self._chat.tools(request.chat))
        for _ in blocks.take([*reader.push(piece.text), *reader.finish()]):
            pass
        return self.writer(request.body, generation).whole(blocks.made, _ending(choice, reader))

    async def events(self, request: Translated[Body], generation: Generation) -> AsyncIterator[dict[str, Any]]:
        """Yields the events; none before the first token, so that an error up to then has its own status."""
        writer, reader = self.writer(request.body, generation), CallReader(self._chat.tools(request.chat))
        blocks, begun = Blocks(), False
        try:
            async for changes in generation.pieces():
                for choice, piece in changes:
                    for event in () if begun else writer.begin():
                        yield event
                    begun = True
                    deltas = reader.push(piece.text) + (reader.finish() if piece.finish_reason else [])
                    for change in blocks.take(deltas):
                        for event in writer.change(change):
                            yield event
                    if piece.finish_reason:
                        for change in blocks.finish():
                            for event in writer.change(change):
                                yield event
                        for event in writer.end(blocks.made, _ending(choice, reader)):
                            yield event
        except ApiError as error:
            if not begun:
                raise
            yield writer.fail(error)


async def translated(
    chat: Chat, body: type[Body], exchange: Exchange, fields: Mapping[str, str], *, is_queued: bool = False
) -> Translated[Body]:
    """Returns a request with the chat that it is; raises the ApiError of one that doesn't fit."""
    read: Callable[..., Any] = chat.service.read_request
    request: Body = await read(body, exchange, is_queued=is_queued)

    def made() -> ChatRequest:
        kind: type[ChatRequest] = chat.body
        try:
            return kind.model_validate(request.chat())
        except ValidationError as error:
            raise bad_request(error, kind) from error

    with own_names(fields):
        return Translated(request, await chat.service.in_worker(exchange, made) if exchange.is_large else made())


@contextlib.contextmanager
def own_names(fields: Mapping[str, str]) -> Iterator[None]:
    """Names the fields of errors that the block raises as a protocol calls them."""
    try:
        yield
    except ApiError as error:
        first = re.split(r"[.\[]", error.param or "", maxsplit=1)[0]
        if first not in fields:
            raise
        old, message = str(error.param), str(error)
        # Places within it are those of the translation.
        new = fields[first]
        message = new + message.removeprefix(old) if message.startswith(old) else message
        raise ApiError(error.status, message, param=new, code=error.code, headers=error.headers) from error


def _ending(choice: Choice, reader: CallReader) -> Ending:
    reason = choice.finish_reason or "abort"
    stopped_by = choice.stop_reason if isinstance(choice.stop_reason, str) else None
    return Ending("tool_calls" if reason == "stop" and reader.num_calls else reason, stopped_by)
