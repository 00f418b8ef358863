"""What every handler of a server shares: its model, limits and counters, and whether it takes requests."""

import asyncio
import collections
import contextlib
import functools
import logging
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Literal, TypeVar

from kanawa.errors import did_you_mean
from pydantic import BaseModel, ValidationError

from kanawa_runtime.serve.engine.request import Grammar, OnOutput, Output, RequestError
from kanawa_runtime.serve.http.access import Hosts, Keys
from kanawa_runtime.serve.http.config import ServerConfig
from kanawa_runtime.serve.http.errors import ApiError, engine_refusals, invalid, shown, unavailable, unprocessable
from kanawa_runtime.serve.http.exchange import Exchange, body_json, json_bytes
from kanawa_runtime.serve.http.large_requests import LARGE, LargeRequests
from kanawa_runtime.serve.http.metrics import Metrics
from kanawa_runtime.serve.http.picture_process import PictureProcesses
from kanawa_runtime.serve.http.protocol import Structure
from kanawa_runtime.serve.http.sampling import PromptReader, SamplingReader
from kanawa_runtime.serve.http.served_model import ServedModel
from kanawa_runtime.serve.http.shares import FairPool, Shares
from kanawa_runtime.serve.http.tokens import TokenTexts
from kanawa_runtime.serve.http.validation import bad_request

logger = logging.getLogger(__name__)

#: Takes an output and the time.monotonic of the engine's call; runs in the loop.
Receiver = Callable[[Output, float], None]


class Handover:
    """Carries outputs to receivers in the loop, in order. `to` makes the engine's callback."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: collections.deque[tuple[Receiver, Output, float]] = collections.deque()
        self._woken = False

    def to(self, receiver: Receiver) -> OnOutput:
        """Returns an OnOutput that passes on to `receiver`."""

        def pass_on(output: Output) -> None:
            self._waiting.append((receiver, output, time.monotonic()))
            # Waking a loop costs a system call, on the engine's thread: one serves all outputs of a step.
            if not self._woken:
                self._woken = True
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._deliver)

        return pass_on

    def _deliver(self) -> None:
        # Before taking: what comes from here on either is taken below or wakes the loop again.
        self._woken = False
        for _ in range(len(self._waiting)):
            receiver, output, at = self._waiting.popleft()
            try:
                receiver(output, at)
            except Exception:
                # Other requests' outputs follow, and nothing would wake the loop for them again.
                logger.exception("an output of request %s was lost", output.request_id)


Result = TypeVar("Result")
#: Nearly every grammar is compiled by then; the others leave their turn to the next one.
_QUICK_SECONDS = 0.25
_GRAMMARS_BUSY_SECONDS = 5.0
#: How long no large body is read after one, in times of what that took: in between, all others are served.
_REST = 4.0
#: Bodies of the longest kind in memory at once; slow senders would fill it.
_MOST_BODIES = 64


class Compilers:
    """Compiling a grammar can't be interrupted, so a slow one never blocks the others.

    `at_once` are compiled at a time, one of each client; one that takes longer than a moment no longer counts among
    them, but among the slow ones, of which there may be `most_slow`.
    """

    def __init__(self, at_once: int, most_slow: int) -> None:
        self._turns = asyncio.Semaphore(at_once)
        self._of_client: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._slow = Shares(most_slow)

    async def run(self, client: str, work: Callable[..., Result], *arguments: Any, seconds: float) -> Result:
        """Returns what `work` does; raises TimeoutError, and the 503 where too many slow ones run."""
        if not self._slow.has_room(client):
            message = (
                "as many structured outputs as may (max_slow_grammars) take long to compile, or this client's share"
            )
            raise unavailable(message, _GRAMMARS_BUSY_SECONDS, "grammars_busy")
        own = self._of_client.setdefault(client, asyncio.Lock())
        async with own, self._turns:
            task = asyncio.wrap_future(_in_thread(work, *arguments))
            # The client may leave before it is done, and its exception is unread then.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            try:
                await asyncio.wait((task,), timeout=min(_QUICK_SECONDS, seconds))
            finally:
                if not task.done():
                    self._slow.take(client)
                    task.add_done_callback(lambda _: self._slow.give_back(client))
        async with asyncio.timeout(max(0.0, seconds - _QUICK_SECONDS)):
            return await asyncio.shield(task)


def _in_thread(work: Callable[..., Result], *arguments: Any) -> "Future[Result]":
    """Returns the future result of a daemon thread."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="kanawa-grammar", daemon=True).start()
    return future


Body = TypeVar("Body", bound=BaseModel)
Phase = Literal["starting", "ready", "draining", "failed"]
_RETRY_SECONDS = {"starting": 5.0, "draining": 30.0, "failed": 60.0}


class Service:
    """The state of a server; made in its loop. Only `phase` changes, and `running`, how many requests are under way."""

    def __init__(self, model: ServedModel, config: ServerConfig, keys: Keys, hosts: Hosts) -> None:
        self.model = model
        self.hosts = hosts
        self.config = config
        self.keys = keys
        self.phase: Phase = "starting"
        self.running = 0
        self.metrics = Metrics(model.name, model.engine)
        self.handover = Handover(asyncio.get_running_loop())
        limits = model.engine.limits
        self.texts = TokenTexts(model.tokenizer, model.special, limits.max_length)
        self.large = LargeRequests(self.texts, limits, config)
        self.prompts = PromptReader(model.tokenizer, limits, self.large.encode, model.pictures)
        self.pictures = PictureProcesses()
        self.sampling = SamplingReader(model.tokenizer, limits, model.defaults)
        places = limits.max_sequences + limits.max_queued
        #: Requests under way, and the answers that they ask for, by client.
        self.requests, self.answers = Shares(places), Shares(places)
        #: Bytes of bodies that are not read to their end yet, by client.
        self.bodies = Shares(_MOST_BODIES * config.max_body_bytes)
        self._workers = FairPool(config.worker_threads, "kanawa-http")
        # Apart: reading a body of megabytes must not delay small ones.
        self._readers = FairPool(1, "kanawa-http-read", rest=_REST)
        # Pictures are large, and a thread waits while a process decodes one.
        self._large = FairPool(1 if model.pictures is None else config.worker_threads, "kanawa-http-large")
        # Separate threads: a slow grammar must not delay prompts.
        self._compilers = Compilers(config.worker_threads, config.max_slow_grammars)
        self.loading = asyncio.Lock()

    @property
    def current_phase(self) -> Phase:
        """The phase, in which an engine that has ended by itself counts as failed."""
        return "failed" if self.phase == "ready" and not self.model.engine.is_alive else self.phase

    def check_ready(self) -> None:
        """Raises the 503 of a server that takes no requests now."""
        phase = self.current_phase
        if phase == "ready":
            return
        messages = {
            "starting": "the server is starting: it compiles its programs",
            "draining": "the server is stopping: it finishes running requests and takes no new ones",
            "failed": "the engine has failed; the server has to be started again",
        }
        raise unavailable(messages[phase], _RETRY_SECONDS[phase], phase)

    def adapter(self, name: str | None) -> str | None:
        """Returns the adapter of a model's name, None for the model itself; raises the 404 of any other."""
        if name is None or name == self.model.name:
            return None
        if name in self.model.adapters:
            return name
        message = f"model: there is no {shown(name)} here{did_you_mean(name, self.model.names)}"
        raise ApiError(404, message, param="model", code="model_not_found")

    async def read_request(self, body: type[Body], exchange: Exchange, *, is_queued: bool = False) -> Body:
        """Returns the body of a request; raises the ApiError of one that doesn't fit.

        `is_queued` raises the 429 of a full queue before the body is parsed: rejecting must be cheap under overload.
        """
        content = await exchange.content()
        if is_queued:
            self.check_queue(exchange)
        is_apart = len(content) >= LARGE and self.large.reads(body)

        def parsed() -> Body:
            if is_apart:
                return self.large.read(body, content)
            received = body_json(content)
            try:
                return body.model_validate(received)
            except ValidationError as error:
                refusal = bad_request(error, body)
                refusal.received = received
                raise refusal from error

        pool = self._large if is_apart else self._readers
        try:
            return await pool.run(exchange.client, parsed) if exchange.is_large else parsed()
        finally:
            exchange.release_body()

    def check_queue(self, exchange: Exchange) -> None:
        """Raises the 429 of a full queue, or of a client that has its share of it."""
        self.check_share(self.requests, exchange.client)
        self.check_share(self.answers, exchange.client)
        with engine_refusals():
            self.model.engine.check_room()

    @contextlib.asynccontextmanager
    async def answering(self, client: str, count: int, late: str) -> AsyncIterator[None]:
        """Holds places for answers that an engine makes within; raises ApiErrors for no room, and as `in_time` does."""
        self.check_share(self.answers, client, count)
        self.check_ready()
        self.answers.take(client, count)
        try:
            async with self.in_time(late):
                yield
        finally:
            self.answers.give_back(client, count)

    @contextlib.asynccontextmanager
    async def in_time(self, late: str) -> AsyncIterator[None]:
        """Raises ApiErrors for what an engine refuses within, and past `max_seconds`, with the message `late`."""
        try:
            with engine_refusals():
                async with asyncio.timeout(self.config.max_seconds):
                    yield
        except TimeoutError as error:
            raise unavailable(late, 5, "deadline_exceeded") from error

    def check_share(self, shares: Shares, client: str, count: int = 1) -> None:
        """Raises the 429 of a client that has its share of the server's places."""
        # More than there is at all is the engine's to refuse.
        if count <= shares.free and not shares.has_room(client, count):
            message = "this client's requests have their share of the server's room; the rest of it is for others"
            raise ApiError(429, message, code="client_queue_full", headers={"Retry-After": "1"})

    def salt(self, client: str, asked: str | None) -> str:
        """Returns the salt of a request's cached prefixes: with keys, no client can tell what another's began with."""
        return f"{client}:{asked or ''}" if self.keys.are_required else asked or ""

    def check_texts(self, value: Any, at: str) -> None:
        """Raises the 400 of a text with the name of a control token, where the server takes none from clients."""
        if self.config.allow_control_tokens:
            return
        names = tuple(self.model.special.values())
        found = next((name for text in _texts(value) for name in names if name in text), None)
        if found is not None:
            raise invalid(at=at, why=f"it holds {found}, a control token of the model (server.allow_control_tokens)")

    async def grammar(self, structure: Structure | None, client: str) -> Grammar | None:
        """Returns the compiled grammar of a structure; raises the 422 of one that can't be compiled, or not in time."""
        if structure is None:
            return None
        kind, spec, field = structure
        grammars = self.model.grammars
        if grammars is None:
            raise unprocessable(at=field, why=self.model.no_grammars or "this server compiles no structures")
        seconds = self.config.grammar_seconds
        try:
            return await self._compilers.run(client, lambda: grammars.compile(kind, spec, field=field), seconds=seconds)
        except RequestError as error:
            raise ApiError(422, str(error), param=error.field, code="invalid_structure") from error
        except TimeoutError as error:
            why = f"it took longer than {seconds:g} s to compile (grammar_seconds)"
            raise unprocessable(at=field, why=why) from error

    async def json(self, exchange: Exchange, made: Callable[[], Any], *, is_long: bool) -> Any:
        """Returns what `made` returns, as JSON where it is long, which a worker's thread then makes and writes."""
        return await self.in_worker(exchange, lambda: json_bytes(made())) if is_long else made()

    async def in_worker(self, exchange: Exchange, work: Callable[..., Result], *arguments: Any) -> Result:
        """Returns what `work` returns in a thread: prompts are long, and the loop serves all clients."""
        pool = self._large if exchange.is_large else self._workers
        return await pool.run(exchange.client, functools.partial(work, *arguments))

    @contextlib.contextmanager
    def counted(self, client: str) -> Iterator[None]:
        """Counts a request as running while the block lasts: a server that stops waits for those."""
        self.running += 1
        try:
            with self.requests.taken(client):
                yield
        finally:
            self.running -= 1

    def close(self) -> None:
        """Ends the threads."""
        self._workers.close()
        self._readers.close()
        self._large.close()
        self.large.close()
        self.pictures.close()


def _texts(value: Any) -> Iterator[str]:
    """Yields every text in a value made of JSON's types."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, held in value.items():
            yield from _texts(name)
            yield from _texts(held)
    elif isinstance(value, list | tuple):
        for held in value:
            yield from _texts(held)
