"""LLMEngine: continuous batching of one model on a thread of its own; the implementation of `request.Engine`."""

import collections
import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import jax
import numpy as np
from kanawa.contracts import CausalLM, Environment, StoredAdapter
from kanawa.errors import UsageError

from kanawa_runtime.data.tokenizers.of_run import tokenizer_of
from kanawa_runtime.runs.open_run import OpenedRun
from kanawa_runtime.serve.adapters.bank import Bank, Seat
from kanawa_runtime.serve.disaggregated.pages import Given, PageTransfer
from kanawa_runtime.serve.engine import compile_count
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.core import Core
from kanawa_runtime.serve.engine.page_pool import PagePool
from kanawa_runtime.serve.engine.paged_model import paged_model
from kanawa_runtime.serve.engine.programs import Programs, Shapes, decoding_environment, prefers_outputs_first
from kanawa_runtime.serve.engine.request import (
    EngineLimits,
    EngineStoppedError,
    OnOutput,
    Output,
    QueueFullError,
    Request,
    RequestError,
)
from kanawa_runtime.serve.engine.scheduler import Scheduler
from kanawa_runtime.serve.engine.validate import check_request, check_together
from kanawa_runtime.serve.speculation.programs import Draft, Speculation
from kanawa_runtime.serve.speculation.speculator import Speculator

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DEFAULT_LENGTH = 2048
#: What a refused client is told to wait before the engine has seen how long requests take.
_RETRY_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class _Submitted:
    request: Request
    on_output: OnOutput
    keeps_pages: bool = False
    given: Given | None = None


class LLMEngine:
    """Serves many requests at once with one model; see `request.Engine` for what its methods promise.

    `params` and `state` are those the model was trained with. `known`, bool of at most the vocabulary, are the ids the
    tokenizer has: padded ids are never drawn. Prefixes are reused unless a layer keeps a state, which pages don't hold.
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
    ) -> None:
        self.config = cfg = (config or EngineConfig()).clone().freeze()
        self.environment = env = decoding_environment(environment or Environment())
        longest = model.longest_sequence()
        self.max_length = cfg.max_length or min(longest or _DEFAULT_LENGTH, _DEFAULT_LENGTH)
        if longest is not None and self.max_length > longest:
            message = f"max_length is {self.max_length}, but the model has positions for {longest} tokens"
            raise RequestError(message, "max_length")
        compute = env.plan.precision.compute
        dtype, on_cpu = cfg.cache_dtype or compute, (env.plan.platform or jax.default_backend()) == "cpu"
        bits = on_cpu and dtype == compute and not cfg.int8_cache
        # Parameters as they are trained have no banks: they are laid beside them whenever some are loaded.
        self._bank = Bank(model, cfg.adapter_slots, cfg.adapter_rank) if cfg.adapter_slots else None
        model = self._bank.model if self._bank is not None else model
        turned = env.mesh is None and prefers_outputs_first(env, model)
        self._paged = paged = paged_model(model, cfg, self.max_length, dtype, bits=bits, turned=turned)
        if paged.has_pages and dtype != compute and not cfg.int8_cache:
            message = (
                f"cache_dtype is {dtype!r}, but the model computes in {compute!r}, and attention reads pages as they "
                "lie; leave cache_dtype unset, or for a smaller cache set int8_cache"
            )
            raise UsageError(message)
        # An int8 cache is restored before it is read, as wide as the table.
        kept = {"has_pages": paged.has_pages, "has_slots": paged.has_slots}
        shapes = Shapes.of(cfg, self.max_length, any_width=on_cpu and not cfg.int8_cache, **kept)
        self._programs = Programs(model, paged, cfg, shapes, self.environment, known)
        self.reuses_prefixes = cfg.prefix_cache and paged.has_pages and not paged.has_slots
        if cfg.prefix_cache and paged.has_slots:
            logger.info("prefixes aren't reused: the model keeps states of whole sequences, which pages don't hold")
        self.transfer = PageTransfer(self._programs) if cfg.transfers_pages else None
        if self.transfer is not None:
            self._programs.more.append(self.transfer)
            self.transfer.know_weights(params)
        speculator = None
        if cfg.speculative_tokens:
            self._programs.speculation = Speculation(self._programs, cfg, self.max_length, draft)
            self._programs.more.append(self._programs.speculation)
            count, has_draft = cfg.speculative_tokens, draft is not None
            speculator = Speculator(count, cfg.ngram_least, cfg.ngram_most, has_draft=has_draft)
        elif draft is not None:
            message = "a draft model was given, but speculative_tokens is 0; say how many it guesses"
            raise UsageError(message)
        scheduler = Scheduler(
            max_sequences=cfg.max_sequences,
            max_length=self.max_length,
            page_size=cfg.page_size,
            pool=PagePool(paged.num_pages if paged.has_pages else 0),
            budget=cfg.max_batched_tokens,
            chunk=cfg.prefill_tokens,
            fused_steps=cfg.fused_steps,
            prefill_sizes=shapes.prefill_sizes,
            reuses_prefixes=self.reuses_prefixes,
            has_pages=paged.has_pages,
            guess=None if speculator is None else speculator.guess,
            in_tiles=shapes.in_tiles,
        )
        self._core = Core(self._programs, scheduler, self.max_length, self._bank, speculator, self.transfer)
        self._programs.load(self._with_banks(params), state or {})
        self._vocab = model.config.vocab_size
        self._thread: threading.Thread | None = None
        self._wake = threading.Condition()
        self._submitted: collections.deque[_Submitted] = collections.deque()
        self._ids: set[str] = set()
        #: How many callbacks are being told that their request has ended.
        self._telling = 0
        self._cancelled: collections.deque[str] = collections.deque()
        #: What is to be done between two steps, and a place for what it raised.
        self._orders: collections.deque[tuple[Callable[[], Any], Future[Any]]] = collections.deque()
        self._is_draining = self._is_stopping = False
        self._compilations = 0
        self._error: str | None = None

    @classmethod
    def of_run(cls, run: OpenedRun, config: EngineConfig | None = None, draft: Draft | None = None) -> "LLMEngine":
        """Returns the engine of an opened run or folder; raises UsageError for a model that doesn't generate."""
        model = run.trainer.model
        if not isinstance(model, CausalLM):
            message = f"{run.directory} holds a {type(model).__name__}, which generates no text: only causal models do"
            raise UsageError(message)
        tokenizer = tokenizer_of(run)
        known = None if tokenizer is None else tokenizer.known
        return cls(model, run.params, run.state, run.environment, config, known, draft)

    @property
    def limits(self) -> EngineLimits:
        """What it holds."""
        cfg = self.config
        return EngineLimits(
            max_sequences=cfg.max_sequences,
            max_length=self.max_length,
            max_queued=cfg.max_queued,
            vocab_size=self._vocab,
            max_logprobs=self._programs.num_logprobs,
        )

    @property
    def is_alive(self) -> bool:
        """Whether it serves: it was started, and neither stopped nor ended by an error."""
        return self._thread is not None and self._thread.is_alive() and self._error is None

    @property
    def num_programs(self) -> int:
        """How many programs were compiled at the start."""
        return self._programs.count

    def start(self) -> None:
        """Compiles every program it will ever run, then begins to serve; returns once it is ready."""
        began = time.monotonic()
        compile_count.listen()
        self._programs.compile()
        logger.info("compiled %d programs in %.1f s", self.num_programs, time.monotonic() - began)
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="kanawa-engine", daemon=True)
        self._thread.start()
        ready.wait()
        if self._error is not None:
            message = f"the engine ended with an error: {self._error}"
            raise EngineStoppedError(message, _RETRY_SECONDS)

    def check(self, request: Request) -> None:
        """Raises RequestError for what could never be served here."""
        check_request(request, self.limits, prompt_logprobs=self.config.prompt_logprobs)
        if request.adapter is not None:
            self._seat_of(request.adapter)

    def _seat_of(self, adapter: str) -> Seat:
        if self._bank is None:
            message = f"this engine has no adapters, and the request asks for {adapter!r}"
            raise RequestError(message, "adapter")
        return self._bank.seat_of(adapter)

    def check_takes_more(self, request_id: str, also: int = 0) -> None:
        """Raises QueueFullError, and RequestError for an id that is running already; `also` more are to come."""
        with self._wake:
            self._check_is_free(request_id)
            self._check_takes_more(also)

    def _check_is_free(self, request_id: str) -> None:
        if request_id in self._ids:
            message = f"a request with the id {request_id!r} is running already; give each its own"
            raise RequestError(message, "id")

    def check_room(self) -> None:
        """Raises QueueFullError where one more request would be refused now."""
        with self._wake:
            self._check_takes_more()

    def submit(
        self, request: Request, on_output: OnOutput, *, keeps_pages: bool = False, given: Given | None = None
    ) -> None:
        """Queues a request. Raises QueueFullError, and RequestError naming field and limit; never waits.

        With `keeps_pages` its pages outlive it, until `release_pages`. `given` is what another engine made of the
        prompt; raises UsageError where its pages aren't like this engine's.
        """
        self.check(request)
        if given is not None:
            if self.transfer is None:
                message = "this engine can't take pages: set transfers_pages in its config"
                raise UsageError(message)
            self.transfer.check(given.arrays, -(-len(request.prompt_ids) // self.config.page_size))
        with self._wake:
            self.check_takes_more(request.id)
            self._queue(_Submitted(request, on_output, keeps_pages, given))

    def _queue(self, submitted: _Submitted) -> None:
        name = submitted.request.id
        if name in self._cancelled:
            # It was asked of an earlier request of this id, which has ended meanwhile.
            self._cancelled = collections.deque(other for other in self._cancelled if other != name)
        self._ids.add(name)
        self._submitted.append(submitted)
        self._wake.notify()

    def submit_together(self, requests: Sequence[Request], on_output: OnOutput) -> None:
        """Queues all of some requests, or raises as `submit` does and queues none; they are taken in before one step.

        What each step holds then depends on them alone: no timing shows in the last bits of their log-probabilities.
        Raises RequestError where two share an id, and for more than could ever wait at once.
        """
        for request in requests:
            self.check(request)
        check_together(requests, self.limits)
        with self._wake:
            self._check_takes_more(len(requests) - 1)
            for request in requests:
                self._check_is_free(request.id)
            for request in requests:
                self._queue(_Submitted(request, on_output))

    def pages_layout(self, adapter: str | None = None) -> str:
        """Names what pages of a prompt hold; equal in engines that may exchange them. Raises as `check` does."""
        if self.transfer is None:
            message = "this engine can't hand pages over: set transfers_pages in its config"
            raise UsageError(message)
        return self.transfer.layout_with(None if adapter is None else self._seat_of(adapter).digest)

    def export_pages(self, request_id: str) -> list[np.ndarray]:
        """Returns what the held pages of a request hold; raises UsageError where there are none."""

        def export() -> list[np.ndarray]:
            pages = self._core.scheduler.held.get(request_id)
            if pages is None or self.transfer is None:
                message = f"no pages of {request_id!r} are held"
                raise UsageError(message)
            return self.transfer.export(pages)

        return self._between_steps(export)

    def held_pages(self) -> Mapping[str, tuple[int, ...]]:
        """Returns the pages that outlive their requests, by request."""
        return {name: tuple(pages) for name, pages in list(self._core.scheduler.held.items())}

    def release_pages(self, request_id: str) -> None:
        """Frees held pages; an id without any, or an engine that has ended, is no error."""
        with contextlib.suppress(EngineStoppedError):
            self._between_steps(lambda: self._core.scheduler.let_go(request_id))

    def _check_takes_more(self, also: int = 0) -> None:
        if self._error is not None:
            message = f"the engine ended with an error: {self._error}"
            raise EngineStoppedError(message, _RETRY_SECONDS)
        if self._thread is None or self._is_stopping:
            message = "the engine isn't running"
            raise EngineStoppedError(message, _RETRY_SECONDS)
        if self._is_draining:
            message = "the engine finishes what it has and takes no new requests"
            raise QueueFullError(message, _RETRY_SECONDS)
        queued = also + len(self._submitted) + self._core.scheduler.num_waiting
        # Waiting ones that will be seated at the next step count too: a burst must not overrun the limit unseen.
        free = self.config.max_sequences - len(self._core.scheduler.running)
        if queued >= self.config.max_queued + max(0, free):
            message = f"the queue is full: {queued} requests wait, and it holds {self.config.max_queued}"
            raise QueueFullError(message, _RETRY_SECONDS)

    def cancel(self, request_id: str) -> None:
        """Ends a request as "abort" within two steps; an id that isn't there is no error."""
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
            **{f"request_success_{reason}": core.finished[reason] for reason in ("stop", "length", "abort", "error")},
        }

    def load(self, params: Any, state: Any = None) -> None:
        """Takes other weights between two steps, compiles nothing, and forgets cached prefixes.

        `state` is what the model learned beside them, such as a router's biases; None keeps the one it has.
        Requests under way go on with the new weights over what the old ones have kept.
        """

        def load() -> None:
            self._core.forget_prefixes()
            self._programs.load(self._with_banks(params), state)
            if self.transfer is not None:
                self.transfer.know_weights(params)

        self._between_steps(load)

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names that requests may ask for."""
        return () if self._bank is None else self._bank.names

    def add_adapter(self, name: str, adapter: StoredAdapter) -> None:
        """Serves one more adapter from the next step on; compiles nothing.

        Raises UsageError where it doesn't fit, no slot is free, or the name is taken.
        """
        bank = self._adapter_bank()
        bank.check(name, adapter)

        def add() -> None:
            bank.add(name, adapter)
            # Not while a step computes with what is replaced: it would be waited for anyhow.
            self._programs.params = bank.replaced(self._programs.params)

        self._between_steps(add)

    def remove_adapter(self, name: str) -> None:
        """Takes no more requests for an adapter; those under way go on. Raises RequestError for an unknown name."""
        bank = self._adapter_bank()
        self._between_steps(lambda: bank.remove(name))

    def _adapter_bank(self) -> Bank:
        if self._bank is None:
            message = "this engine has no room for adapters: set adapter_slots in its config"
            raise UsageError(message)
        return self._bank

    def _with_banks(self, params: Any) -> Any:
        return params if self._bank is None else self._bank.with_banks(params, self._programs.whole)

    def _between_steps(self, order: Callable[[], T]) -> T:
        """Has the engine's thread do something, and waits for it; returns and raises what it does."""
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
            while (self._ids or self._telling) and time.monotonic() < until:
                self._wake.wait(min(0.1, max(0.0, until - time.monotonic())))
            return not (self._ids or self._telling)

    def stop(self) -> None:
        """Ends what runs as "abort" and the thread."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()

    def check_pages(self) -> None:
        """Raises PagePoolError unless the books of the page pool balance; call it while nothing runs."""
        self._core.scheduler.pool.check()

    def _run(self, ready: threading.Event) -> None:
        before = compile_count.compilations()
        try:
            with self.environment.active():
                ready.set()
                while self._take_in():
                    self._core.step()
                    self._compilations = compile_count.compilations() - before
            self._end("abort")
        except BaseException as error:
            # Whatever it was, nobody may wait for an answer that never comes.
            self._error = f"{type(error).__name__}: {error}"
            logger.exception("the engine ended with an error")
            self._end("error")
        finally:
            ready.set()

    def _take_in(self) -> bool:
        """Takes in what was asked for since the last step, waiting for it if there is nothing to do; False to stop."""
        with self._wake:
            core, until = self._core, None
            if core.is_stuck and not core.is_idle:
                until = core.seconds_to_deadline()
            if not self._is_asked and (core.is_idle or core.is_stuck):
                # Who waits for held pages is woken by the order that frees them.
                self._wake.wait_for(lambda: self._is_asked, until)
            if self._is_stopping:
                return False
            submitted, cancelled, orders = list(self._submitted), list(self._cancelled), list(self._orders)
            self._submitted.clear()
            self._cancelled.clear()
            self._orders.clear()
        for one in submitted:
            tell = self._until_finished(one.on_output)
            self._core.add(one.request, tell, keeps_pages=one.keeps_pages, given=one.given)
        for request_id in cancelled:
            self._core.cancel(request_id)
        for order, done in orders:
            try:
                done.set_result(order())
            except Exception as error:
                # The caller's own (weights of other shapes, no memory for them): the engine goes on with what it has.
                done.set_exception(error)
        return True

    @property
    def _is_asked(self) -> bool:
        return bool(self._submitted or self._cancelled or self._orders or self._is_stopping)

    def _until_finished(self, on_output: OnOutput) -> OnOutput:
        def tell(output: Output) -> None:
            ends, raised = output.finish_reason is not None, True
            if ends:
                # Before the caller knows, who may use the id again at once.
                self._free(output.request_id, telling=1)
            try:
                on_output(output)
                raised = False
            finally:
                if ends:
                    # Whoever waits for the last request's end may look at its answer then.
                    self._free(None, telling=-1)
                elif raised:
                    self._free(output.request_id)

        return tell

    def _free(self, request_id: str | None, telling: int = 0) -> None:
        with self._wake:
            self._ids.discard(request_id or "")
            self._telling += telling
            self._wake.notify_all()

    def _end(self, reason: str) -> None:
        """Ends all requests; those that were never taken in too."""
        with self._wake:
            self._is_stopping = True
            submitted = list(self._submitted)
            self._submitted.clear()
        core = self._core
        for one in submitted:
            core.add(one.request, self._until_finished(one.on_output))
        core.end(reason, self._error)
