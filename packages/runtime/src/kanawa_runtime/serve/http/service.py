"""What every handler of a server shares: its model, limits and counters, and whether it takes requests."""

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

from kanawa.errors import did_you_mean

from kanawa_runtime.serve.engine.errors import EngineStoppedError, QueueFullError
from kanawa_runtime.serve.http.compilers import Compilers
from kanawa_runtime.serve.http.errors import ApiError, queue_full, shown, unavailable
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.fields import Kind
from kanawa_runtime.serve.http.handover import Handover
from kanawa_runtime.serve.http.hosts import Hosts
from kanawa_runtime.serve.http.keys import Keys
from kanawa_runtime.serve.http.limits import ServerConfig
from kanawa_runtime.serve.http.long_json import json_bytes
from kanawa_runtime.serve.http.metrics import Metrics
from kanawa_runtime.serve.http.prompts import PromptReader
from kanawa_runtime.serve.http.sampling import SamplingReader
from kanawa_runtime.serve.http.served_model import ServedModel

Result = TypeVar("Result")
Phase = Literal["starting", "ready", "draining", "failed"]
_LONG_BODY_BYTES = 64 * 1024
_RETRY_SECONDS = {"starting": 5.0, "draining": 30.0, "failed": 60.0}


class Service:
    """The state of a server; made in its loop. `phase` is the only thing that changes, and `running` what it does."""

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
        # Apart: a grammar that takes its whole time must not keep prompts waiting.
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
            "draining": "the server is stopping: it finishes what it has begun and takes nothing new",
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

    async def checked(self, kind: Kind, exchange: Exchange, *, is_queued: bool = False) -> Any:
        """Returns what a body holds as `kind` reads it; raises the ApiError of one that doesn't fit.

        `is_queued` raises the 429 of a full queue before anything is made of the body.
        """
        content = await exchange.content()
        if is_queued:
            self._check_room()
        if len(content) < _LONG_BODY_BYTES:
            return kind.read(exchange.json(content), "")
        # Millions of ids take seconds, in which the loop would send nobody a token.
        return await self.in_worker(lambda: kind.read(exchange.json(content), ""))

    def _check_room(self) -> None:
        """Raises the 429 of a full queue: whoever overruns a server must cost it next to nothing."""
        try:
            self.model.engine.check_room()
        except EngineStoppedError as error:
            raise unavailable(str(error), error.retry_after, "engine_stopped") from error
        except QueueFullError as error:
            raise queue_full(error) from error

    async def answer(self, exchange: Exchange, made: Callable[[], Any], *, is_long: bool) -> None:
        """Sends what `made` returns, as JSON; a long answer is made and written in a worker's thread."""
        content = await self.in_worker(lambda: json_bytes(made())) if is_long else made()
        await exchange.answer(content)

    async def in_worker(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Returns what `work` does in a thread: prompts are long, and the loop serves everybody."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, work, *arguments)

    async def in_compiler(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Returns what `work` does in a thread for grammars; raises TimeoutError after `grammar_seconds`."""
        return await self._compilers.run(work, *arguments, seconds=self.config.grammar_seconds)

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Counts a request as running while the block lasts: a server that stops waits for those."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def close(self) -> None:
        """Lets go of the threads."""
        self._workers.shutdown(wait=False, cancel_futures=True)
