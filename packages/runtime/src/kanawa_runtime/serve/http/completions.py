"""`/v1/completions`: the text after prompts of text or ids; whole or as a stream, with echo and scores."""

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

from kanawa_runtime.serve.engine.request import Grammar
from kanawa_runtime.serve.http.choice import Choice, Piece
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.generation import Generation, TextEndpoint, new_generation
from kanawa_runtime.serve.http.protocol import CompletionRequest, Structure, completion_request
from kanawa_runtime.serve.http.route import ANSWERS, EVENTS, JSON, Operation
from kanawa_runtime.serve.http.service import Service

_DEFAULT_TOKENS = 16
_KIND = "text_completion"


def routes(service: Service) -> Iterator[Operation]:
    """Yields the route of a model that writes texts."""
    if service.model.writes:
        made = Completions(service)
        both = (JSON, EVENTS)
        yield Operation("POST", "/v1/completions", "Continue texts", made, "api", made.body, both, ANSWERS)


class Completions(TextEndpoint[CompletionRequest]):
    """The endpoint."""

    def __init__(self, service: Service) -> None:
        super().__init__(service, completion_request(service.model.engine.limits, service.config))

    async def read(self, exchange: Exchange) -> CompletionRequest:
        """Returns the request."""
        return await self.service.read_request(self.body, exchange, is_queued=True)

    def structure(self, request: CompletionRequest) -> Structure | None:
        """Returns the form that the request requires."""
        return request.structure()

    def num_logprobs(self, request: CompletionRequest) -> int:
        """Returns how many the request wants."""
        return request.logprobs or 0

    def generation(self, exchange: Exchange, request: CompletionRequest, grammar: Grammar | None) -> Generation:
        """Returns the choices of every prompt."""
        service = self.service
        service.check_texts(request.prompts, "prompt")
        prompts, samplings = [], []
        scored = request
        if request.echo and request.prompt_logprobs is None:
            scored = request.model_copy(update={"prompt_logprobs": request.logprobs})
        for index, prompt in enumerate(request.prompts):
            field = "prompt" if len(request.prompts) == 1 else f"prompt[{index}]"
            ids = service.prompts.ids(
                prompt, prefix=request.add_special_tokens, field=field, truncate=request.truncate_prompt_tokens
            )
            # An engine generates at least one token: with max_tokens 0, the answer drops it.
            asked = None if request.max_tokens is None else max(1, request.max_tokens)
            most = service.prompts.room(ids, asked, "max_tokens", otherwise=_DEFAULT_TOKENS)
            own = grammar if index == 0 or grammar is None else grammar.fork()
            samplings.append(service.sampling.read(scored, max_tokens=most, logprobs=request.logprobs, grammar=own))
            prompts.append(ids)
        return new_generation(service, exchange, request, "cmpl", prompts, samplings)

    def whole(self, request: CompletionRequest, generation: Generation, pieces: list[Piece]) -> dict[str, Any]:
        """Returns the response."""
        each = zip(generation.choices, pieces, strict=True)
        choices = [self._choice(request, generation, choice, piece, first=True) for choice, piece in each]
        return generation.head(_KIND) | {"choices": choices, "usage": _usage(request, generation)}

    async def events(self, request: CompletionRequest, generation: Generation) -> AsyncIterator[dict[str, Any] | bytes]:
        """Yields an event a piece, and the usage last where wanted."""
        begun: set[int] = set()
        async for changes in generation.pieces():
            for choice, piece in changes:
                first = choice.index not in begun
                begun.add(choice.index)
                made = functools.partial(self._event, request, generation, choice, piece, first=first)
                # The first one may hold the log-probabilities of a long prompt.
                is_long = first and generation.is_long(self.num_logprobs(request))
                yield await self.service.json(generation.exchange, made, is_long=is_long)
        if request.stream_options is not None and request.stream_options.include_usage:
            yield generation.head(_KIND) | {"choices": [], "usage": _usage(request, generation)}

    def _event(
        self, request: CompletionRequest, generation: Generation, choice: Choice, piece: Piece, *, first: bool
    ) -> dict[str, Any]:
        return generation.event(_KIND, [self._choice(request, generation, choice, piece, first=first)])

    def _choice(
        self, request: CompletionRequest, generation: Generation, choice: Choice, piece: Piece, *, first: bool
    ) -> dict[str, Any]:
        """Returns a choice of the response, or of an event: `first` where nothing of it has been sent."""
        reason = piece.finish_reason
        if request.max_tokens == 0:
            piece, reason = Piece(), reason and "length"
        number, ids, writer = request.logprobs, generation.prompts[choice.prompt], generation.writer
        text, logprobs, before = piece.text, None, 0
        echoed = None
        if request.echo:
            echoed, whole = writer.echoed(ids, choice.prompt_logprobs, number or 0)
            prompt = request.prompts[choice.prompt]
            whole = prompt if isinstance(prompt, str) else whole
            before = len(whole)
            text = whole + text if first else text
        if number is not None:
            logprobs = writer.completion(piece, number, at=before)
            if echoed is not None and first:
                logprobs = {name: echoed[name] + logprobs[name] for name in logprobs}
        made: dict[str, Any] = {
            "index": choice.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": reason,
            "stop_reason": choice.stop_reason if reason else None,
        }
        if request.prompt_logprobs is not None and first:
            made["prompt_logprobs"] = writer.prompt(ids, choice.prompt_logprobs)
        if request.return_token_ids:
            made["token_ids"] = piece.token_ids
            made |= {"prompt_token_ids": list(ids)} if first else {}
        return made


def _usage(request: CompletionRequest, generation: Generation) -> dict[str, Any]:
    return generation.usage(0 if request.max_tokens == 0 else None)
