"""What every handler of a server shares: its model, limits and counters, and whether it takes requests."""

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

from kanawa.errors import did_you_mean
from pydantic import ValidationError

from kanawa_runtime.serve.engine.request import Grammar, RequestError
from kanawa_runtime.serve.http.access import Hosts, Keys
from kanawa_runtime.serve.http.compilers import Compilers
from kanawa_runtime.serve.http.config import ServerConfig
from kanawa_runtime.serve.http.errors import ApiError, refused_by_engine, shown, unavailable, unprocessable
from kanawa_runtime.serve.http.exchange import Exchange, json_bytes
from kanawa_runtime.serve.http.handover import Handover
from kanawa_runtime.serve.http.metrics import Metrics
from kanawa_runtime.serve.http.protocol import Structure
from kanawa_runtime.serve.http.sampling import PromptReader, SamplingReader
from kanawa_runtime.serve.http.served_model import ServedModel
from kanawa_runtime.serve.http.validation import Fields, bad_request

Result = TypeVar("Result")
Body = TypeVar("Body", bound=Fields)
Phase = Literal["starting", "ready", "draining", "failed"]
_LONG_BODY_BYTES = 64 * 1024
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
        self.prompts = PromptReader(model.tokenizer, limits)
        self.sampling = SamplingReader(model.tokenizer, limits, model.defaults)
        make = concurrent.futures.ThreadPoolExecutor
        self._workers = make(config.worker_threads, thread_name_prefix="kanawa-http")
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
            try:
                self.model.engine.check_room()
            except Exception as error:
                refusal = refused_by_engine(error)
                if refusal is None:
                    raise
                raise refusal from error

        def parsed() -> Body:
            try:
                return body.model_validate(exchange.json(content))
            except ValidationError as error:
                raise bad_request(error, body) from error

        # Millions of ids take seconds, in which the loop would send no tokens.
        return parsed() if len(content) < _LONG_BODY_BYTES else await self.in_worker(parsed)

    async def grammar(self, structure: Structure | None) -> Grammar | None:
        """Returns the compiled grammar of a structure; raises the 422 of one that can't be compiled, or not in time."""
        if structure is None:
            return None
        kind, spec, field = structure
        grammars = self.model.grammars
        if grammars is None:
            why = (
                'structured output needs llguidance, which isn\'t installed at the server: pip install "kanawa[serve]"'
            )
            raise unprocessable(at=field, why=why)
        seconds = self.config.grammar_seconds
        try:
            return await self._compilers.run(lambda: grammars.compile(kind, spec, field=field), seconds=seconds)
        except RequestError as error:
            raise ApiError(422, str(error), param=error.field, code="invalid_structure") from error
        except TimeoutError as error:
            why = f"it took longer than {seconds:g} s to compile (grammar_seconds)"
            raise unprocessable(at=field, why=why) from error

    async def json(self, made: Callable[[], Any], *, is_long: bool) -> Any:
        """Returns what `made` returns, as JSON where it is long, which a worker's thread then makes and writes."""
        return await self.in_worker(lambda: json_bytes(made())) if is_long else made()

    async def in_worker(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Returns what `work` returns in a thread: prompts are long, and the loop serves all clients."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, work, *arguments)

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Counts a request as running while the block lasts: a server that stops waits for those."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def close(self) -> None:
        """Ends the threads."""
        self._workers.shutdown(wait=False, cancel_futures=True)
