"""The way of every request for text: read, tokenized beside the loop, generated, and answered whole or in events."""

import abc
import functools
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

from kanawa_runtime.serve.engine.request import Grammar
from kanawa_runtime.serve.http.choice import Piece
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.generation import Generation
from kanawa_runtime.serve.http.protocol import Structure, TextRequest
from kanawa_runtime.serve.http.service import Service

Body = TypeVar("Body", bound=TextRequest)


class TextEndpoint(abc.ABC, Generic[Body]):
    """Answers requests with a `body`; what differs between completions and chats is abstract."""

    def __init__(self, service: Service, body: type[Body]) -> None:
        self.service = service
        self.body = body

    async def __call__(self, exchange: Exchange) -> None:
        """Answers a request."""
        service = self.service
        service.check_ready()
        request = await service.read_request(self.body, exchange, is_queued=True)
        with service.counted():
            async with exchange.while_connected():
                grammar = await service.grammar(self.structure(request))
                generation = await service.in_worker(self.generation, request, grammar)
                # While this waited for a thread, the server may have begun to stop.
                service.check_ready()
                with generation:
                    if request.stream:
                        await exchange.events(self.events(request, generation))
                        return
                    pieces = await generation.whole()
                    made = functools.partial(self.whole, request, generation, pieces)
                    content = await service.json(made, is_long=generation.is_long(self.num_logprobs(request)))
            await exchange.answer(content)

    @abc.abstractmethod
    def structure(self, request: Body) -> Structure | None:
        """Returns the form that the answer must have."""

    @abc.abstractmethod
    def generation(self, request: Body, grammar: Grammar | None) -> Generation:
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
