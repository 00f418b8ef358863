"""The choices of one HTTP request: submitted together, followed as they grow, and ended together."""

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import AsyncIterator, Sequence

from kanawa_runtime.serve.engine.errors import EngineStoppedError, QueueFullError, RequestError
from kanawa_runtime.serve.engine.request import Engine, Output, Request, TokenLogprobs
from kanawa_runtime.serve.http.errors import invalid, queue_full, unavailable, unprocessable
from kanawa_runtime.serve.http.growing_text import GrowingText
from kanawa_runtime.serve.http.handover import Handover
from kanawa_runtime.serve.http.metrics import Metrics

#: How long after its deadline an engine may leave a request unanswered before the server answers in its place.
_PATIENCE_SECONDS = 5.0
#: What a request calls a field that the engine names otherwise.
_FIELDS = {"prompt_ids": "prompt", "adapter": "model"}


@dataclasses.dataclass
class Piece:
    """What a choice gained since it was last asked."""

    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[TokenLogprobs] = dataclasses.field(default_factory=list)
    #: Where in the choice's text each token begins, as far as text was given out by then.
    offsets: list[int] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None


class Answer:
    """One choice: `prompt` says of which of the request's prompts, `index` which choice it is in the response."""

    def __init__(self, request: Request, text: GrowingText, *, index: int, prompt: int) -> None:
        self.request = request
        self.index = index
        self.prompt = prompt
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.error: str | None = None
        self.is_refused = False
        self.cached_tokens = 0
        self.num_tokens = 0
        self.prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
        self.submitted = self.scheduled = self.first = self.last = 0.0
        self._text = text
        self._length = 0
        self._piece = Piece()

    def take(self, output: Output) -> None:
        """Adds an engine's output; what comes after the end is nothing."""
        if self.finish_reason is not None:
            return
        self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
        self.scheduled = output.scheduled_at or self.scheduled
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        for place, token_id in enumerate(output.token_ids):
            self.num_tokens += 1
            self._piece.token_ids.append(token_id)
            self._piece.offsets.append(self._length)
            if output.logprobs is not None:
                self._piece.logprobs.append(output.logprobs[place])
            self._add(self._text.push(token_id))
            if self._text.stop is not None:
                self.finish_reason, self.stop_reason = "stop", self._text.stop
                return
        if output.finish_reason is not None:
            self._add(self._text.finish())
            self.finish_reason, self.error = output.finish_reason, output.error
            self.is_refused = output.is_refused
            if self._text.stop is not None:
                self.finish_reason, self.stop_reason = "stop", self._text.stop
            elif output.stop_token_id is not None:
                # It was drawn like any other token, and is paid for.
                self.num_tokens += 1
                if output.stop_token_id in self.request.sampling.stop_token_ids:
                    self.stop_reason = output.stop_token_id

    def end(self, reason: str) -> None:
        """Ends the choice from this side."""
        if self.finish_reason is None:
            self._add(self._text.finish())
            self.finish_reason = reason

    def piece(self) -> Piece:
        """Returns what is new since the last call."""
        piece, self._piece = self._piece, Piece()
        piece.finish_reason = self.finish_reason
        return piece

    def _add(self, text: str) -> None:
        self._piece.text += text
        self._length += len(text)


class Answers:
    """All choices of a request while they run; leaving the context ends what still does."""

    def __init__(self, answers: Sequence[Answer], engine: Engine, handover: Handover, metrics: Metrics) -> None:
        self.answers = list(answers)
        self._engine = engine
        self._handover = handover
        self._metrics = metrics
        self._changed: dict[int, Answer] = {}
        self._event = asyncio.Event()

    def __enter__(self) -> "Answers":
        """Submits every choice; raises the 429 of a full queue, the 400 of what the engine can't take."""
        try:
            for answer in self.answers:
                answer.submitted = time.monotonic()
                receiver = functools.partial(self._take, answer)
                self._engine.submit(answer.request, self._handover.to(receiver))
        except EngineStoppedError as error:
            self._end("abort")
            raise unavailable(str(error), error.retry_after, "engine_stopped") from error
        except QueueFullError as error:
            self._end("abort")
            raise queue_full(error) from error
        except RequestError as error:
            self._end("abort")
            raise invalid(_FIELDS.get(error.field, error.field), str(error)) from error
        except Exception:
            # The choices before it would run to their ends for nobody.
            self._end("abort")
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end("abort")

    def _end(self, reason: str) -> None:
        for answer in self.answers:
            if answer.submitted and answer.finish_reason is None:
                self._engine.cancel(answer.request.id)
                answer.end(reason)
                self._metrics.ended(answer)

    def _take(self, answer: Answer, output: Output, at: float) -> None:
        if answer.finish_reason is not None:
            return
        before = answer.num_tokens
        answer.take(output)
        self._metrics.took(answer, answer.num_tokens - before, at)
        if answer.finish_reason is not None:
            if output.finish_reason is None:  # a stop string, of which the engine knows nothing
                self._engine.cancel(answer.request.id)
            self._metrics.ended(answer)
        self._changed[answer.index] = answer
        self._event.set()

    async def pieces(self) -> AsyncIterator[list[tuple[Answer, Piece]]]:
        """Yields what choices gained, each with its piece, until all have ended.

        What comes while the caller is busy is joined: a client that reads slowly gets fewer and longer pieces.
        Raises the 503 of an engine that failed, or that gives no answer in time.
        """
        running = len(self.answers)
        deadline = self.answers[0].request.deadline
        while running:
            with contextlib.suppress(TimeoutError):
                left = None if deadline is None else max(0.0, deadline + _PATIENCE_SECONDS - time.monotonic())
                # Up to Python 3.11 wait_for loses a cancellation that comes with the event: a request whose client has
                # left would go on to its end.
                async with asyncio.timeout(left):
                    await self._event.wait()
            if not self._event.is_set():
                self._end("abort")
                message = "the engine gave no answer in the time that a request may take"
                raise unavailable(message, 5, "deadline_exceeded")
            self._event.clear()
            changed, self._changed = self._changed, {}
            running -= sum(answer.finish_reason is not None for answer in changed.values())
            failed = next((a for a in changed.values() if a.finish_reason == "error"), None)
            if failed is not None and failed.is_refused:
                raise unprocessable(at="", why=f"the request can't be gone on with: {failed.error}")
            if failed is not None:
                message = f"the engine failed at this request: {failed.error or 'it gave no reason'}"
                raise unavailable(message, 1, "engine_error")
            if any(a.finish_reason == "abort" and not a.num_tokens for a in changed.values()):
                message = "the request was ended before its first token: it took too long, or the server is stopping"
                raise unavailable(message, 5, "deadline_exceeded")
            yield [(answer, answer.piece()) for answer in changed.values()]

    async def whole(self) -> list[Piece]:
        """Returns all that each choice is made of, in order, once all have ended."""
        gathered = [Piece() for _ in self.answers]
        async for changes in self.pieces():
            for answer, piece in changes:
                whole = gathered[answer.index]
                whole.text += piece.text
                whole.token_ids += piece.token_ids
                whole.logprobs += piece.logprobs
                whole.offsets += piece.offsets
                whole.finish_reason = piece.finish_reason
        return gathered
