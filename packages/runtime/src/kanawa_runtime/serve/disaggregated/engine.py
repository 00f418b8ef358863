"""The engine that decodes what another one has taken in; to whoever uses it, an engine like any other."""

import dataclasses
import logging
import secrets
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kanawa.errors import KanawaError, UsageError

from kanawa_runtime.serve.disaggregated.connector import Connector
from kanawa_runtime.serve.disaggregated.wire import WireError
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.request import EngineLimits, OnOutput, Output, QueueFullError, Request, RequestError

logger = logging.getLogger(__name__)


class DecodeEngine:
    """Implements `request.Engine`. A prompt that the other engine doesn't take in is taken in here: none is lost.

    `at_once` prompts are under way at a time. What follows a grammar is prefilled here: grammars don't travel.
    """

    def __init__(self, engine: LLMEngine, connector: Connector, *, at_once: int = 8) -> None:
        """Raises UsageError without `transfers_pages` in the engine's config."""
        if engine.transfer is None:
            message = "this engine can't take pages: set transfers_pages in its config"
            raise UsageError(message)
        self._engine, self._connector, self._transfer = engine, connector, engine.transfer
        self._workers = ThreadPoolExecutor(at_once, thread_name_prefix="kanawa-transfer")
        self._lock = threading.Lock()
        self._under_way: dict[str, tuple[threading.Event, OnOutput]] = {}
        self._is_draining = False
        self.transfers = self.failures = self.bytes = 0

    @property
    def limits(self) -> EngineLimits:
        """What it holds."""
        return self._engine.limits

    @property
    def is_alive(self) -> bool:
        """Whether it serves; the other engine isn't needed for that."""
        return self._engine.is_alive

    def start(self) -> None:
        """Compiles and begins to serve."""
        self._engine.start()

    def submit(self, request: Request, on_output: OnOutput) -> None:
        """Queues a request; raises as every engine does."""
        self._engine.check(request)
        if request.sampling.grammar is None and request.sampling.seed is None:
            # Drawn here, since both engines draw by it.
            sampling = dataclasses.replace(request.sampling, seed=secrets.randbits(63))
            request = dataclasses.replace(request, sampling=sampling)
        gone = threading.Event()
        with self._lock:
            if request.id in self._under_way:
                message = f"a request with the id {request.id!r} is running already; give each its own"
                raise RequestError(message, "id")
            self._check_room()
            if request.sampling.grammar is not None:
                self._engine.submit(request, on_output)
                return
            self._engine.check_takes_more(request.id)
            self._under_way[request.id] = gone, on_output
        self._workers.submit(self._prefill, request, on_output, gone)

    def check_room(self) -> None:
        """Raises QueueFullError where one more request would be refused now."""
        with self._lock:
            self._check_room()

    def _check_room(self) -> None:
        if self._is_draining:
            message = f"the engine finishes what it has, {len(self._under_way)} prompts among it"
            raise QueueFullError(message, 1.0)
        # Whoever is taken here must find room there: refused later, it would be lost.
        self._engine.check_takes_more("", also=len(self._under_way))

    def _prefill(self, request: Request, on_output: OnOutput, gone: threading.Event) -> None:
        given = None
        try:
            if not gone.is_set():
                seed = request.sampling.seed or 0
                layout = self._engine.pages_layout(request.adapter)
                given = self._connector.prefill(request, seed, layout, self._transfer.shapes, gone)
                self.transfers += 1
                self.bytes += sum(array.nbytes for array in given.arrays)
        except WireError as error:
            self.failures += not gone.is_set()
            logger.warning("request %s is prefilled here: %s", request.id, error)
        except Exception:
            # Of a connector from elsewhere, say: nobody waits for a worker's exception.
            self.failures += 1
            logger.exception("request %s is prefilled here", request.id)
        with self._lock:
            if self._under_way.pop(request.id, None) is None:
                return  # Cancelled, and told so.
            try:
                self._hand_on(request, on_output, given)
            except Exception as error:
                # In a worker's thread nobody would hear of it, and who asked would wait for ever.
                if not isinstance(error, KanawaError):
                    logger.exception("request %s couldn't be handed on", request.id)
                on_output(Output(request_id=request.id, finish_reason="error", error=str(error)))

    def _hand_on(self, request: Request, on_output: OnOutput, given: Any) -> None:
        is_last = request.sampling.max_tokens == 1 or len(request.prompt_ids) + 1 >= self.limits.max_length
        if given is not None and (given.first.finish_reason == "stop" or is_last):
            on_output(given.first)
        else:
            self._engine.submit(request, on_output, given=given)

    def cancel(self, request_id: str) -> None:
        """Ends a request as "abort", wherever it is; an id that isn't there is no error."""
        with self._lock:
            under_way = self._under_way.pop(request_id, None)
        if under_way is None:
            self._engine.cancel(request_id)
            return
        gone, on_output = under_way
        gone.set()
        on_output(Output(request_id=request_id, finish_reason="abort"))

    def stats(self) -> Mapping[str, float]:
        """Returns the engine's own, and what went over from the other one."""
        own = dict(self._engine.stats())
        own["num_requests_waiting"] += len(self._under_way)
        return own | {
            "kv_transfer_prompts": self.transfers,
            "kv_transfer_failures": self.failures,
            "kv_transfer_bytes": self.bytes,
        }

    def load(self, params: object, state: object = None) -> None:
        """Takes other weights; the other engine has to take them too, or pages of older ones come over."""
        self._engine.load(params, state)

    def drain(self, seconds: float) -> bool:
        """Refuses new requests and waits for the others; returns whether all ended in time."""
        with self._lock:
            self._is_draining = True
        waited = threading.Event()
        left = seconds
        while self._under_way and left > 0:
            waited.wait(0.05)
            left -= 0.05
        return not self._under_way and self._engine.drain(max(0.0, left))

    def stop(self) -> None:
        """Ends what runs as "abort", and the threads."""
        for request_id in list(self._under_way):
            self.cancel(request_id)
        self._workers.shutdown(wait=True, cancel_futures=True)
        self._engine.stop()
