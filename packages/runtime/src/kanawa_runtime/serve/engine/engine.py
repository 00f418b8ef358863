"""LLMEngine: continuous batching of one model on a thread of its own; implements `request.Engine`."""

import collections
import contextlib
import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self, TypeVar

import numpy as np
from kanawa.contracts import CausalLM, Environment, StoredAdapter
from kanawa.errors import UsageError

from kanawa_runtime.data.tokenizers.load import tokenizer_of
from kanawa_runtime.runs.open_run import OpenedRun
from kanawa_runtime.serve.engine.adapter_slots import AdapterSlots, LoraSlot
from kanawa_runtime.serve.engine.batching import end_thread
from kanawa_runtime.serve.engine.build import build_core, continuing_model
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.page_transfer import PageShapes, PageTransfer
from kanawa_runtime.serve.engine.picture_tower import check_pictures
from kanawa_runtime.serve.engine.programs import compilations, listen
from kanawa_runtime.serve.engine.request import (
    EngineLimits,
    EngineStoppedError,
    FinishReason,
    OnOutput,
    Output,
    QueueFullError,
    RemotePrefill,
    Request,
    RequestError,
    SamplingParams,
    Submitted,
    check_request,
    check_together,
    gather_outputs,
)
from kanawa_runtime.serve.engine.rows import LOGPROBS, RANDOM
from kanawa_runtime.serve.engine.sequence import sampling_flags
from kanawa_runtime.serve.engine.speculation import Draft

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: When a refused client may ask again.
_RETRY_SECONDS = 1.0


class LLMEngine:
    """Serves many requests at once with one model; see `request.Engine` for what its methods promise.

    `params` and `state` are those the model was trained with. `known`, bool of at most the vocabulary, are the ids the
    tokenizer has: padded ids are never drawn. `trained_length`, of the sequences it was trained on, bounds the default
    length. Prefixes are reused unless a layer has a state, which pages don't hold.
    """

    def __init__(
        self,
        model: CausalLM,
        params: Any,
        state: Any = None,
        environment: Environment | None = None,
        config: EngineConfig | None = None,
        known: np.ndarray | None = None,
        draft: Draft | None = None,
        trained_length: int | None = None,
    ) -> None:
        self.config = cfg = (config or EngineConfig()).clone().freeze()
        trained_length = trained_length or model.trained_length()
        self._core = core = build_core(model, cfg, environment or Environment(), known, draft, trained_length)
        self.environment, self.max_length, self.transfer = core.programs.environment, core.max_length, core.transfer
        self._programs, self._adapters = core.programs, core.adapters
        self._load(params, state or {})
        self._thread: threading.Thread | None = None
        self._wake = threading.Condition()
        self._submitted: collections.deque[Submitted] = collections.deque()
        self._ids: set[str] = set()
        #: How many callbacks are being called with the last output of their request.
        self._finishing = 0
        self._cancelled: collections.deque[str] = collections.deque()
        #: Work for between two steps, with its result.
        self._orders: collections.deque[tuple[Callable[[], Any], Future[Any]]] = collections.deque()
        self._is_draining = self._is_stopping = False
        self._compilations = 0
        self._error: str | None = None

    @classmethod
    def of_run(cls, run: OpenedRun, config: EngineConfig | None = None, draft: Draft | None = None) -> Self:
        """Returns the engine of an opened run or folder; raises UsageError for a model that doesn't generate."""
        model = continuing_model(run)
        tokenizer = tokenizer_of(run)
        known = None if tokenizer is None else tokenizer.known
        return cls(model, run.params, run.state, run.environment, config, known, draft, run.trained_length)

    @property
    def limits(self) -> EngineLimits:
        """Its sizes."""
        cfg = self.config
        return EngineLimits(
            max_sequences=cfg.max_sequences,
            max_length=self.max_length,
            max_queued=cfg.max_queued,
            vocab_size=self._programs.vocab,
            max_logprobs=self._programs.num_logprobs,
        )

    @property
    def is_alive(self) -> bool:
        """Whether it serves: it was started, was not stopped, and has not failed."""
        return self._thread is not None and self._thread.is_alive() and self._error is None

    @property
    def num_programs(self) -> int:
        """How many programs were compiled at the start."""
        return self._programs.count

    def start(self) -> None:
        """Compiles every program it will ever run, then begins to serve; returns once it is ready."""
        began = time.monotonic()
        listen()
        self._programs.compile()
        logger.info("compiled %d programs in %.1f s", self.num_programs, time.monotonic() - began)
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="kanawa-engine", daemon=True)
        self._thread.start()
        ready.wait()
        if self._error is not None:
            message = f"the engine ended with an error: {self._error}"
            raise EngineStoppedError(message, _RETRY_SECONDS)

    def __enter__(self) -> Self:
        """Starts the engine."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops it."""
        self.stop()

    def check_request(self, request: Request) -> None:
        """Raises RequestError for a request that could never be served here."""
        check_request(request, self.limits, prompt_logprobs=self.config.prompt_logprobs)
        check_pictures(request, self._core.tower)
        if self.config.draws_only and sampling_flags(request) & ~(RANDOM | LOGPROBS):
            message = (
                "this engine draws by temperature alone (draws_only): no cuts, penalties, biases, grammars, bad words"
            )
            raise RequestError(message, "sampling")
        if request.adapter is not None:
            self._lora_slot(request.adapter)

    def _lora_slot(self, adapter: str) -> LoraSlot:
        if self._adapters is None:
            message = f"this engine has no adapters, and the request asks for {adapter!r}"
            raise RequestError(message, "adapter")
        return self._adapters.slot_of(adapter)

    def check_room(self, also: int = 0) -> None:
        """Raises QueueFullError where any request would be refused now; `also` more are to come."""
        with self._wake:
            if self._error is not None:
                message = f"the engine ended with an error: {self._error}"
                raise EngineStoppedError(message, _RETRY_SECONDS)
            if self._thread is None or self._is_stopping:
                message = "the engine isn't running"
                raise EngineStoppedError(message, _RETRY_SECONDS)
            if self._is_draining:
                message = "the engine is draining: it finishes running ones and takes no new requests"
                raise QueueFullError(message, _RETRY_SECONDS)
            queued = also + len(self._submitted) + self._core.scheduler.num_waiting
            # Those admitted at the next step count too: a burst must not overrun the limit unseen.
            free = self.config.max_sequences - len(self._core.scheduler.running)
            if queued >= self.config.max_queued + max(0, free):
                message = f"the queue is full: {queued} requests wait, and it holds {self.config.max_queued}"
                raise QueueFullError(message, _RETRY_SECONDS)

    def check_id(self, request_id: str) -> None:
        """Raises RequestError for the id of a running request."""
        with self._wake:
            if request_id in self._ids:
                message = f"a request with the id {request_id!r} is running already; give each its own"
                raise RequestError(message, "id")

    def submit(
        self,
        request: Request,
        on_output: OnOutput,
        *,
        hold_pages: bool = False,
        remote_prefill: RemotePrefill | None = None,
    ) -> None:
        """Queues a request. Raises QueueFullError, and RequestError naming field and limit; never waits.

        With `hold_pages` its pages outlive it, until `release_pages`. `remote_prefill` is the prompt's from another
        engine; raises UsageError where its pages aren't like this engine's.
        """
        self.check_request(request)
        if remote_prefill is not None:
            count = -(-len(request.prompt_ids) // self.config.page_size)
            self._page_transfer().check_pages(remote_prefill.arrays, count)
        with self._wake:
            self.check_id(request.id)
            self.check_room()
            self._queue(Submitted(request, on_output, hold_pages, remote_prefill))

    def _queue(self, submitted: Submitted) -> None:
        name = submitted.request.id
        if name in self._cancelled:
            # An earlier request of this id was cancelled, and has ended meanwhile.
            self._cancelled = collections.deque(other for other in self._cancelled if other != name)
        self._ids.add(name)
        self._submitted.append(submitted)
        self._wake.notify()

    def submit_together(self, requests: Sequence[Request], on_output: OnOutput) -> None:
        """Queues all of some requests before one step, or raises as `submit` does and queues none.

        What each step holds then depends on them alone: timing can't change the last bits of their log-probabilities.
        Raises RequestError where two share an id, and for more than could ever wait at once.
        """
        for request in requests:
            self.check_request(request)
        check_together(requests, self.limits)
        with self._wake:
            self.check_room(len(requests) - 1)
            for request in requests:
                self.check_id(request.id)
            for request in requests:
                self._queue(Submitted(request, on_output))

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Output]:
        """Returns all that each prompt of token ids gained, once all have ended; `sampling` is for all, or one each.

        They are submitted together. Raises as `submit_together` does, and EngineStoppedError where the engine fails.
        """
        each = sampling if isinstance(sampling, Sequence) else [sampling or SamplingParams()] * len(prompts)
        name = uuid.uuid4().hex
        requests = [
            Request(id=f"{name}-{index}", prompt_ids=tuple(prompt), sampling=own)
            for index, (prompt, own) in enumerate(zip(prompts, each, strict=True))
        ]
        outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        self.submit_together(requests, outputs.put)
        return gather_outputs(self, requests, outputs)

    def _page_transfer(self) -> PageTransfer:
        if self.transfer is None:
            message = "this engine can't exchange pages: set transfers_pages in its config"
            raise UsageError(message)
        return self.transfer

    def pages_layout(self, adapter: str | None = None) -> str:
        """Names the content and form of pages: equal in engines that may exchange them. Raises as `check_request`."""
        digest = None if adapter is None else self._lora_slot(adapter).digest
        return self._page_transfer().layout_with(digest)

    @property
    def page_shapes(self) -> PageShapes:
        """The shape of one page and the dtype of each array of the cache."""
        return self._page_transfer().shapes

    def export_pages(self, request_id: str) -> list[np.ndarray]:
        """Returns the content of a request's held pages; raises UsageError where there are none."""

        def export() -> list[np.ndarray]:
            pages = self._core.scheduler.held.get(request_id)
            if pages is None:
                message = f"no pages of {request_id!r} are held"
                raise UsageError(message)
            return self._page_transfer().read_pages(pages)

        return self._between_steps(export)

    def held_pages(self) -> Mapping[str, tuple[int, ...]]:
        """Returns the pages that outlive their requests, by request."""
        return {name: tuple(pages) for name, pages in list(self._core.scheduler.held.items())}

    def release_pages(self, request_id: str) -> None:
        """Frees held pages; an id without any, or an engine that has ended, is ignored."""
        with contextlib.suppress(EngineStoppedError):
            self._between_steps(lambda: self._core.scheduler.free_held_pages(request_id))

    def cancel(self, request_id: str) -> None:
        """Ends a request as "abort" within two steps; an unknown id is ignored."""
        with self._wake:
            self._cancelled.append(request_id)
            self._wake.notify()

    def stats(self) -> Mapping[str, float]:
        """Returns gauges and counters by the names of vLLM's metrics without their prefix, at no cost to a step."""
        core, scheduler = self._core, self._core.scheduler
        pool = scheduler.pool
        return {
            "num_requests_running": len(scheduler.running),
            "num_requests_waiting": scheduler.num_waiting + len(self._submitted),
            "kv_cache_usage_perc": pool.used / pool.total if pool.total else 0.0,
            "prefix_cache_queries": scheduler.prefix_queries,
            "prefix_cache_hits": scheduler.prefix_hits,
            "num_preemptions": scheduler.preemptions,
            "prompt_tokens": core.prompt_tokens,
            "generation_tokens": core.generation_tokens,
            "engine_steps": core.steps,
            "engine_host_seconds": core.host_seconds,
            "num_programs": self.num_programs,
            "compilations": self._compilations,
            **({} if core.speculator is None else core.speculator.stats()),
            **({} if core.tower is None else core.tower.stats()),
            **{f"request_success_{reason}": core.finished[reason] for reason in ("stop", "length", "abort", "error")},
        }

    def load(self, params: Any, state: Any = None) -> None:
        """Takes other weights between two steps, compiles nothing, and evicts cached prefixes.

        `state` is what the model learned beside them, such as a router's biases; None leaves it as it is. Running
        requests continue with the new weights over the pages of the old ones.
        """

        def load() -> None:
            self._core.evict_prefixes()
            self._load(params, state)

        self._between_steps(load)

    def _load(self, params: Any, state: Any) -> None:
        whole = params
        if self._adapters is not None:
            # Parameters as they are trained have no adapters.
            whole = self._adapters.with_adapters(params, self._programs.whole)
        self._programs.load(whole, state)
        if self.transfer is not None:
            self.transfer.fingerprint_weights(params)

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names that requests may use."""
        return () if self._adapters is None else self._adapters.names

    def add_adapter(self, name: str, adapter: StoredAdapter) -> None:
        """Serves one more adapter from the next step on; compiles nothing.

        Raises UsageError where it doesn't fit, no slot is free, or the name is taken.
        """
        slots = self._adapter_slots()
        slots.check_adapter(name, adapter)

        def add() -> None:
            slots.add(name, adapter)
            # Not while a step computes with the old arrays: they would be waited for.
            self._programs.params = slots.replaced(self._programs.params)

        self._between_steps(add)

    def remove_adapter(self, name: str) -> None:
        """Takes no more requests for an adapter; running ones continue. Raises RequestError for an unknown name."""
        slots = self._adapter_slots()
        self._between_steps(lambda: slots.remove(name))

    def _adapter_slots(self) -> AdapterSlots:
        if self._adapters is None:
            message = "this engine has no slots for adapters: set adapter_slots in its config"
            raise UsageError(message)
        return self._adapters

    def _between_steps(self, order: Callable[[], T]) -> T:
        """Returns the result of `order`, run on the engine's thread between two steps."""
        if self._thread is None:
            return order()
        done: Future[T] = Future()
        with self._wake:
            self._orders.append((order, done))
            self._wake.notify()
        while True:
            try:
                return done.result(timeout=0.1)
            except TimeoutError:
                if done.done():
                    return done.result()
                if not self._thread.is_alive():
                    message = f"the engine isn't running, so nothing is changed ({self._error or 'it was stopped'})"
                    raise EngineStoppedError(message, _RETRY_SECONDS) from None

    def drain(self, seconds: float) -> bool:
        """Refuses new requests and waits for the others; returns whether all ended in time."""
        until = time.monotonic() + seconds
        with self._wake:
            self._is_draining = True
            while (self._ids or self._finishing) and time.monotonic() < until:
                self._wake.wait(min(0.1, max(0.0, until - time.monotonic())))
            return not (self._ids or self._finishing)

    def stop(self) -> None:
        """Ends running requests as "abort", and the thread."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify_all()
        end_thread(self._thread)

    def check_pages(self) -> None:
        """Raises PagePoolError where the page pool is inconsistent; call it while nothing runs."""
        self._core.scheduler.pool.check_counts()

    def _run(self, ready: threading.Event) -> None:
        before = compilations()
        try:
            with self.environment.active():
                ready.set()
                while self._take_in():
                    self._core.step()
                    self._core.wait_until_due()
                    self._compilations = compilations() - before
            self._end("abort")
        except BaseException as error:
            # Whatever it was, no request may wait for an answer that never comes.
            self._error = f"{type(error).__name__}: {error}"
            logger.exception("the engine ended with an error")
            self._end("error")
        finally:
            ready.set()

    def _take_in(self) -> bool:
        """Passes on new requests, waiting for them if there is nothing to do; returns False to stop."""
        with self._wake:
            core, until = self._core, None
            if core.is_stuck and not core.is_idle:
                until = core.seconds_to_deadline()
            if not self._is_asked and (core.is_idle or core.is_stuck):
                # Requests that wait for held pages are woken by the order that frees them.
                self._wake.wait_for(lambda: self._is_asked, until)
            if self._is_stopping:
                return False
            submitted, cancelled, orders = list(self._submitted), list(self._cancelled), list(self._orders)
            self._submitted.clear()
            self._cancelled.clear()
            self._orders.clear()
        for one in submitted:
            on_output = self._until_finished(one.on_output)
            self._core.add(one.request, on_output, hold_pages=one.hold_pages, remote_prefill=one.remote_prefill)
        for request_id in cancelled:
            self._core.cancel(request_id)
        for order, done in orders:
            try:
                done.set_result(order())
            except Exception as error:
                # The caller's own (weights of other shapes, no memory for them): the engine continues unchanged.
                done.set_exception(error)
        return True

    @property
    def _is_asked(self) -> bool:
        return bool(self._submitted or self._cancelled or self._orders or self._is_stopping)

    def _until_finished(self, on_output: OnOutput) -> OnOutput:
        def pass_on(output: Output) -> None:
            ends, raised = output.finish_reason is not None, True
            if ends:
                # Before the callback, which may use the id again at once.
                self._free(output.request_id, finishing=1)
            try:
                on_output(output)
                raised = False
            finally:
                if ends:
                    # `drain` returns once the last callback has its output.
                    self._free(None, finishing=-1)
                elif raised:
                    self._free(output.request_id)

        return pass_on

    def _free(self, request_id: str | None, finishing: int = 0) -> None:
        with self._wake:
            self._ids.discard(request_id or "")
            self._finishing += finishing
            self._wake.notify_all()

    def _end(self, reason: FinishReason) -> None:
        """Ends all requests, those still submitted too."""
        with self._wake:
            self._is_stopping = True
            submitted = list(self._submitted)
            self._submitted.clear()
        core = self._core
        for one in submitted:
            core.add(one.request, self._until_finished(one.on_output))
        core.end(reason, self._error)
