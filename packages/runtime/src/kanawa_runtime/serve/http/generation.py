"""Requests for text: their choices run together, and are answered whole or in events."""

import abc
import asyncio
import contextlib
import functools
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from kanawa_runtime.serve.engine.picture import Picture
from kanawa_runtime.serve.engine.request import Grammar, Output, Request, SamplingParams
from kanawa_runtime.serve.growing_text import GrowingText
from kanawa_runtime.serve.http.choice import Choice, LogprobWriter, Piece
from kanawa_runtime.serve.http.errors import ApiError, engine_refusals, invalid, unavailable, unprocessable
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.protocol import Structure, TextRequest
from kanawa_runtime.serve.http.sampling import sampling_of_choice
from kanawa_runtime.serve.http.service import Service

#: How long after its deadline an engine may leave a request unanswered before the server answers in its place.
_PATIENCE_SECONDS = 5.0
#: Tokens, each log-probability counted as another, that take some milliseconds to write.
_LONG_ANSWER_TOKENS = 2000


class Generation:
    """Prompts and the choices of each, which run while its context lasts; leaving the context ends what still runs."""

    def __init__(
        self,
        service: Service,
        exchange: Exchange,
        request: TextRequest,
        name: str,
        prompts: Sequence[Sequence[int]],
    ) -> None:
        self.request = request
        self.id = name
        self.model = request.model or service.model.name
        self.created = int(time.time())
        self.prompts = prompts
        self.choices: list[Choice] = []
        model = service.model
        self.writer = LogprobWriter(model.tokenizer, model.special, request.return_tokens_as_token_ids)
        self._engine, self._handover, self._metrics = model.text_engine, service.handover, service.metrics
        self._service, self.exchange = service, exchange
        self._changed: dict[int, Choice] = {}
        self._event = asyncio.Event()

    def __enter__(self) -> Self:
        """Submits every choice; raises the 429 of a full queue, the 400 of a request that the engine refuses."""
        answers, client = self._service.answers, self.exchange.client
        self._service.check_share(answers, client, len(self.choices))
        try:
            with engine_refusals():
                for choice in self.choices:
                    choice.submitted = time.monotonic()
                    answers.take(client)
                    receiver = functools.partial(self._take, choice)
                    self._engine.submit(choice.request, self._handover.to(receiver))
        except Exception:
            # The choices before it would run to their ends although the request fails.
            self._end("abort")
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end("abort")

    def _end(self, reason: str) -> None:
        for choice in self.choices:
            if choice.submitted and choice.finish_reason is None:
                self._engine.cancel(choice.request.id)
                choice.end(reason)
                self._count_finished(choice)

    def _count_finished(self, choice: Choice) -> None:
        self._metrics.count_finished(choice)
        self._service.answers.give_back(self.exchange.client)

    def _take(self, choice: Choice, output: Output, at: float) -> None:
        if choice.finish_reason is not None:
            return
        before = choice.num_tokens
        choice.take(output)
        self._metrics.count_tokens(choice, choice.num_tokens - before, at)
        if choice.finish_reason is not None:
            if output.finish_reason is None:  # a stop string, of which the engine knows nothing
                self._engine.cancel(choice.request.id)
            self._count_finished(choice)
        self._changed[choice.index] = choice
        self._event.set()

    async def pieces(self) -> AsyncIterator[list[tuple[Choice, Piece]]]:
        """Yields what choices gained, each with its piece, until all have ended.

        What comes while the caller is busy is joined: a client that reads slowly gets fewer and longer pieces.
        Raises the 503 of an engine that failed, or that gives no answer in time.
        """
        running = len(self.choices)
        deadline = self.choices[0].request.deadline
        while running:
            with contextlib.suppress(TimeoutError):
                left = None if deadline is None else max(0.0, deadline + _PATIENCE_SECONDS - time.monotonic())
                # Up to Python 3.11 wait_for loses a cancellation that comes with the event: a request whose client has
                # left would run to its end.
                async with asyncio.timeout(left):
                    await self._event.wait()
            if not self._event.is_set():
                self._end("abort")
                message = "the engine gave no answer in the time that a request may take"
                raise unavailable(message, 5, "deadline_exceeded")
            self._event.clear()
            changed, self._changed = self._changed, {}
            running -= sum(choice.finish_reason is not None for choice in changed.values())
            for choice in changed.values():
                error = _error_of(choice)
                if error is not None:
                    raise error
            yield [(choice, choice.piece()) for choice in changed.values()]

    async def whole(self) -> list[Piece]:
        """Returns all that each choice is made of, in order, once all have ended."""
        gathered = [Piece() for _ in self.choices]
        async for changes in self.pieces():
            for choice, piece in changes:
                gathered[choice.index] += piece
        return gathered

    def head(self, kind: str) -> dict[str, Any]:
        """Returns what every response and every event of it begins with."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def usage(self, completion_tokens: int | None = None) -> dict[str, Any]:
        """Returns the tokens of all prompts and choices so far; a response may show fewer than were drawn."""
        prompt = sum(len(ids) for ids in self.prompts)
        drawn = sum(choice.num_tokens for choice in self.choices)
        completion = drawn if completion_tokens is None else completion_tokens
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        if not self._service.config.shows_cached_tokens:
            return usage
        cached = {choice.prompt: choice.cached_tokens for choice in reversed(self.choices)}
        return usage | {"prompt_tokens_details": {"cached_tokens": sum(cached.values())}}

    def event(self, kind: str, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Returns an event of a stream, with the usage that the request wants."""
        made, options = self.head(kind) | {"choices": choices}, self.request.stream_options
        if options is not None and options.continuous_usage_stats:
            return made | {"usage": self.usage()}
        return made | {"usage": None} if options is not None and options.include_usage else made

    def is_long(self, num_logprobs: int) -> bool:
        """Returns whether writing the answer, with so many log-probabilities a token, would hold the loop up."""
        tokens = sum(len(ids) for ids in self.prompts) + sum(choice.num_tokens for choice in self.choices)
        return tokens * (1 + num_logprobs + (self.request.prompt_logprobs or 0)) > _LONG_ANSWER_TOKENS


def _error_of(choice: Choice) -> ApiError | None:
    """Returns the error of a choice that ended without an answer."""
    if choice.finish_reason == "error" and choice.is_refused:
        return unprocessable(at="", why=f"the request can't be continued: {choice.error}")
    if choice.finish_reason == "error":
        message = f"the engine failed at this request: {choice.error or 'it gave no reason'}"
        return unavailable(message, 1, "engine_error")
    if choice.finish_reason == "abort" and not choice.num_tokens:
        message = "the request was ended before its first token: it took too long, or the server is stopping"
        return unavailable(message, 5, "deadline_exceeded")
    return None


def new_generation(
    service: Service,
    exchange: Exchange,
    request: TextRequest,
    prefix: str,
    prompts: Sequence[Sequence[int]],
    samplings: Sequence[SamplingParams],
    pictures: tuple[Picture, ...] = (),
) -> Generation:
    """Returns the generation of a request: `samplings` are those of the first choice of each prompt.

    `pictures` are those of the one prompt that has some.
    """
    adapter, model, deadline = service.adapter(request.model), service.model, time.monotonic()
    deadline += service.config.max_seconds
    count, most = len(prompts) * request.n, service.answers.most_at_once
    if count > most:
        # A 429 would come again for ever.
        raise invalid(at="n", why=f"the request asks for {count} answers at once, and a client may have {most}")
    generation = Generation(service, exchange, request, f"{prefix}-{uuid.uuid4().hex}", prompts)
    for place, (ids, sampling) in enumerate(zip(prompts, samplings, strict=True)):
        for choice in range(request.n):
            index = place * request.n + choice
            text = GrowingText(
                model.tokenizer,
                ids,
                request.stop_strings,
                include_stop=request.include_stop_str_in_output,
                min_tokens=sampling.min_tokens,
                special={} if request.skip_special_tokens else model.special,
            )
            own = Request(
                id=f"{generation.id}-{index}",
                prompt_ids=tuple(ids),
                sampling=sampling_of_choice(sampling, choice),
                adapter=adapter,
                cache_salt=service.salt(exchange.client, request.cache_salt),
                priority=request.priority,
                client=exchange.client,
                weight=exchange.weight,
                deadline=deadline,
                pictures=pictures,
            )
            generation.choices.append(Choice(own, text, index=index, prompt=place))
        service.metrics.count_prompt(len(ids), request.n, sampling.max_tokens)
    return generation


class Asked(Protocol):
    """What the frame of every endpoint reads of a request."""

    @property
    def priority(self) -> int:
        """Lower goes first."""

    @property
    def stream(self) -> bool:
        """Whether the answer comes in events."""


Body = TypeVar("Body", bound=Asked)


class TextEndpoint(abc.ABC, Generic[Body]):
    """Answers requests for text; what differs between protocols is abstract."""

    #: Whether events have names, which are their types, and no mark follows the last one.
    has_named_events: ClassVar[bool] = False

    def __init__(self, service: Service, body: type[Any]) -> None:
        """`body` is the model of the requests' JSON."""
        self.service = service
        self.body = body

    async def __call__(self, exchange: Exchange) -> None:
        """Answers a request."""
        service = self.service
        service.check_ready()
        request = await self.read(exchange)
        if request.priority and not service.config.allow_priority:
            raise invalid(at="priority", why="this server takes none (server.allow_priority); leave it out")
        with service.counted(exchange.client):
            async with exchange.while_connected():
                grammar = await service.grammar(self.structure(request), exchange.client)
                generation = await service.in_worker(exchange, self.generation, exchange, request, grammar)
                # While this waited for a thread, the server may have begun to stop.
                service.check_ready()
                with generation:
                    if request.stream:
                        await exchange.events(self.events(request, generation), named=self.has_named_events)
                        return
                    pieces = await generation.whole()
                    made = functools.partial(self.whole, request, generation, pieces)
                    is_long = generation.is_long(self.num_logprobs(request))
                    content = await service.json(exchange, made, is_long=is_long)
            await exchange.answer(content)

    @abc.abstractmethod
    async def read(self, exchange: Exchange) -> Body:
        """Returns the request; raises the ApiError of one that doesn't fit."""

    @abc.abstractmethod
    def structure(self, request: Body) -> Structure | None:
        """Returns the form that the answer must have."""

    @abc.abstractmethod
    def generation(self, exchange: Exchange, request: Body, grammar: Grammar | None) -> Generation:
        """Returns the choices to generate; called in a worker's thread."""

    @abc.abstractmethod
    def num_logprobs(self, request: Body) -> int:
        """Returns how many log-probabilities the answer holds for each new token."""

    @abc.abstractmethod
    def whole(self, request: Body, generation: Generation, pieces: list[Piece]) -> dict[str, Any]:
        """Returns the response, from all that each choice is made of."""

    @abc.abstractmethod
    def events(self, request: Body, generation: Generation) -> AsyncIterator[Any]:
        """Yields the events of a stream: objects, or JSON as bytes."""
