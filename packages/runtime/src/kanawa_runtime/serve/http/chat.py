"""`/v1/chat/completions`: conversations, by the model's own template; tools, formats, and deltas as they come."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from kanawa_runtime.serve.engine.request import Grammar
from kanawa_runtime.serve.http.chat_pictures import picture_parts, pictures_of
from kanawa_runtime.serve.http.chat_template import messages_for_template, rendered, tools_for_template
from kanawa_runtime.serve.http.choice import Choice, Piece
from kanawa_runtime.serve.http.errors import invalid
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.generation import Generation, TextEndpoint, new_generation
from kanawa_runtime.serve.http.protocol import ChatRequest, Structure, chat_request
from kanawa_runtime.serve.http.route import ANSWERS, EVENTS, JSON, Operation
from kanawa_runtime.serve.http.service import Service
from kanawa_runtime.serve.http.tool_calls import CallReader, Tools, message_of


def routes(service: Service) -> Iterator[Operation]:
    """Yields the route of a model that writes texts."""
    if service.model.writes:
        made = Chat(service)
        both = (JSON, EVENTS)
        yield Operation("POST", "/v1/chat/completions", "Answer a conversation", made, "api", made.body, both, ANSWERS)


class Chat(TextEndpoint[ChatRequest]):
    """The endpoint."""

    def __init__(self, service: Service) -> None:
        super().__init__(service, chat_request(service.model.engine.limits, service.config))

    async def read(self, exchange: Exchange) -> ChatRequest:
        """Returns the request."""
        return await self.service.read_request(self.body, exchange, is_queued=True)

    def structure(self, request: ChatRequest) -> Structure | None:
        """Returns the form that the request or its tools require; raises the 400 of tools that can't be called."""
        tools, structure = self.tools(request), request.structure()
        if tools is None:
            return structure
        if structure is None:
            model = self.service.model
            return tools.structure(tuple(model.special.values())) if model.grammars else None
        if tools.required:
            raise invalid(at="tool_choice", why="a call and another structure can't both be required; give one of them")
        return structure

    def tools(self, request: ChatRequest) -> Tools | None:
        """Returns the functions that the answer may call."""
        return Tools.of(request, self.service.model.template.source)

    def num_logprobs(self, request: ChatRequest) -> int:
        """Returns how many the request wants."""
        return (request.top_logprobs or 0) + request.logprobs

    def prompt(self, request: ChatRequest) -> list[int]:
        """Returns the ids of the conversation; raises the ApiError of one that the template or the model can't take."""
        service, messages = self.service, messages_for_template(request.messages)
        count = len(picture_parts(service, request.messages))
        tools = tools_for_template(request.tools) if request.tool_choice != "none" else None
        service.check_texts([messages, tools, request.chat_template_kwargs], "messages")
        marks = service.model.pictures
        text = rendered(
            service.model.template,
            messages if marks is None else marks.for_template(messages),
            tools,
            add_generation_prompt=request.add_generation_prompt,
            extra=request.chat_template_kwargs,
        )
        # Templates of chat models write the token that begins a text; the plain one is text alone.
        prefix = request.add_special_tokens or not service.model.template.own
        truncate = request.truncate_prompt_tokens
        return service.prompts.ids(text, prefix=prefix, field="messages", truncate=truncate, num_pictures=count)

    def generation(self, exchange: Exchange, request: ChatRequest, grammar: Grammar | None) -> Generation:
        """Returns the choices that continue the conversation."""
        service, ids = self.service, self.prompt(request)
        asked, field = request.max_completion_tokens, "max_completion_tokens"
        if asked is None:
            asked, field = request.max_tokens, "max_tokens"
        most = service.prompts.room(ids, asked, field)
        logprobs = (request.top_logprobs or 0) if request.logprobs else None
        sampling = service.sampling.read(request, max_tokens=most, logprobs=logprobs, grammar=grammar)
        pictures = pictures_of(service, request.messages)
        return new_generation(service, exchange, request, "chatcmpl", [ids], [sampling], pictures)

    def whole(self, request: ChatRequest, generation: Generation, pieces: list[Piece]) -> dict[str, Any]:
        """Returns the response."""
        choices, tools = [], self.tools(request)
        for choice, piece in zip(generation.choices, pieces, strict=True):
            reader = CallReader(tools)
            deltas = reader.push(piece.text) + reader.finish()
            made = {"index": choice.index, "message": message_of(deltas)}
            choices.append(made | self._rest(request, generation, choice, piece, reader))
        head = generation.head("chat.completion")
        if request.prompt_logprobs is not None:
            logprobs = generation.choices[0].prompt_logprobs
            head["prompt_logprobs"] = generation.writer.prompt(generation.prompts[0], logprobs)
        if request.return_token_ids:
            head["prompt_token_ids"] = list(generation.prompts[0])
        return head | {"choices": choices, "usage": generation.usage()}

    async def events(self, request: ChatRequest, generation: Generation) -> AsyncIterator[dict[str, Any]]:
        """Yields deltas of messages, and the usage last where wanted."""
        kind, tools = "chat.completion.chunk", self.tools(request)
        readers: dict[int, CallReader] = {}
        async for changes in generation.pieces():
            for choice, piece in changes:
                # Not before its first token: what clients measure as time to it is the first event.
                if choice.index not in readers:
                    begin = {"index": choice.index, "delta": {"role": "assistant", "content": ""}}
                    yield generation.event(kind, [begin | {"logprobs": None, "finish_reason": None}])
                reader = readers.setdefault(choice.index, CallReader(tools))
                deltas = reader.push(piece.text) + (reader.finish() if piece.finish_reason else [])
                # What a token gains besides text, and the end, has an event even where there is nothing to show.
                deltas = deltas or ([{}] if piece.finish_reason or piece.logprobs else [])
                last = len(deltas) - 1
                for place, delta in enumerate(deltas):
                    rest = self._rest(request, generation, choice, piece if place == last else Piece(), reader)
                    yield generation.event(kind, [{"index": choice.index, "delta": delta} | rest])
        if request.stream_options is not None and request.stream_options.include_usage:
            yield generation.head(kind) | {"choices": [], "usage": generation.usage()}

    def _rest(
        self, request: ChatRequest, generation: Generation, choice: Choice, piece: Piece, reader: CallReader
    ) -> dict[str, Any]:
        reason = piece.finish_reason
        if reason == "stop" and reader.num_calls:
            reason = "tool_calls"
        has_logprobs = request.logprobs and piece.token_ids
        logprobs = generation.writer.chat(piece, request.top_logprobs or 0) if has_logprobs else None
        rest: dict[str, Any] = {"logprobs": logprobs, "finish_reason": reason}
        if reason:
            rest["stop_reason"] = choice.stop_reason
        return rest | ({"token_ids": piece.token_ids} if request.return_token_ids else {})
