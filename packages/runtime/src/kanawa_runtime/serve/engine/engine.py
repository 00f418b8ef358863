"""LLMEngine: continuous batching of one model on a thread of its own; the implementation of `request.Engine`."""

import collections
import dataclasses
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from kanawa.contracts import CausalLM, Environment
from kanawa.errors import UsageError

from kanawa_runtime.serve.engine import compile_count
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.core import Core
from kanawa_runtime.serve.engine.errors import EngineStoppedError, QueueFullError, RequestError
from kanawa_runtime.serve.engine.page_pool import PagePool
from kanawa_runtime.serve.engine.paged_model import paged_model
from kanawa_runtime.serve.engine.programs import Programs, Shapes
from kanawa_runtime.serve.engine.request import EngineLimits, OnOutput, Output, Request
from kanawa_runtime.serve.engine.scheduler import Scheduler
from kanawa_runtime.serve.engine.validate import check_request
from kanawa_runtime.serve.open_run import OpenedRun, tokenizer_of

logger = logging.getLogger(__name__)

#: How long a sequence may get where neither config nor model say.
_LENGTH = 2048
#: What a refused client is told to wait before the engine has seen how long requests take.
_RETRY_SECONDS = 1.0


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
    ) -> None:
        self.config = cfg = (config or EngineConfig()).clone().freeze()
        self.environment = env = _for_few_rows(environment or Environment())
        longest = model.longest_sequence()
        self.max_length = cfg.max_length or min(longest or _LENGTH, _LENGTH)
        if longest is not None and self.max_length > longest:
            message = f"max_length is {self.max_length}, but the model has positions for {longest} tokens"
            raise RequestError(message, "max_length")
        compute = env.plan.precision.compute
        dtype, on_cpu = cfg.cache_dtype or compute, (env.plan.platform or jax.default_backend()) == "cpu"
        bits = on_cpu and dtype == compute and not cfg.int8_cache
        self._paged = paged = paged_model(model, cfg, self.max_length, dtype, bits=bits)
        # An int8 cache is restored before it is read, as wide as the table.
        shapes = Shapes.of(cfg, self.max_length, has_pages=paged.has_pages, any_width=on_cpu and not cfg.int8_cache)
        self._programs = Programs(model, paged, cfg, shapes, self.environment, known)
        self.reuses_prefixes = cfg.prefix_cache and paged.has_pages and not paged.has_slots
        if cfg.prefix_cache and paged.has_slots:
            logger.info("prefixes aren't reused: the model keeps states of whole sequences, which pages don't hold")
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
        )
        self._core = Core(self._programs, scheduler, self.max_length)
        self._programs.load(params, state or {})
        self._vocab = model.config.vocab_size
        self._thread: threading.Thread | None = None
        self._wake = threading.Condition()
        self._submitted: collections.deque[tuple[Request, OnOutput]] = collections.deque()
        self._ids: set[str] = set()
        self._cancelled: collections.deque[str] = collections.deque()
        self._loads: collections.deque[tuple[Any, threading.Event]] = collections.deque()
        self._is_draining = self._is_stopping = False
        self._compilations = 0
        self._error: str | None = None

    @classmethod
    def of_run(cls, run: OpenedRun, config: EngineConfig | None = None) -> "LLMEngine":
        """Returns the engine of an opened run or folder; raises UsageError for a model that doesn't generate."""
        model = run.trainer.model
        if not isinstance(model, CausalLM):
            message = f"{run.directory} holds a {type(model).__name__}, which generates no text: only causal models do"
            raise UsageError(message)
        tokenizer = tokenizer_of(run)
        known = None if tokenizer is None else tokenizer.known
        return cls(model, run.params, run.state, run.environment, config, known)

    @property
    def limits(self) -> EngineLimits:
        """What it holds."""
        cfg = self.config
        return EngineLimits(
            max_sequences=cfg.max_sequences,
            max_length=self.max_length,
            max_queued=cfg.max_queued,
            vocab_size=self._vocab,
            max_logprobs=cfg.max_logprobs,
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

    def submit(self, request: Request, on_output: OnOutput) -> None:
        """Queues a request. Raises QueueFullError, and RequestError naming field and limit; never waits."""
        check_request(request, self.limits, prompt_logprobs=self.config.prompt_logprobs)
        if request.adapter is not None:
            message = f"this engine has no adapters, and the request asks for {request.adapter!r}"
            raise RequestError(message, "adapter")
        with self._wake:
            if request.id in self._ids:
                message = f"a request with the id {request.id!r} is running already; give each its own"
                raise RequestError(message, "id")
            self._check_takes_more()
            self._ids.add(request.id)
            self._submitted.append((request, on_output))
            self._wake.notify()

    def _check_takes_more(self) -> None:
        if self._error is not None:
            message = f"the engine ended with an error: {self._error}"
            raise EngineStoppedError(message, _RETRY_SECONDS)
        if self._thread is None or self._is_stopping:
            message = "the engine isn't running"
            raise EngineStoppedError(message, _RETRY_SECONDS)
        if self._is_draining:
            message = "the engine finishes what it has and takes no new requests"
            raise QueueFullError(message, _RETRY_SECONDS)
        queued = len(self._submitted) + self._core.scheduler.num_waiting
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
            "num_programs": self.num_programs,
            "compilations": self._compilations,
            **{f"request_success_{reason}": core.finished[reason] for reason in ("stop", "length", "abort", "error")},
        }

    def load(self, params: Any) -> None:
        """Takes other weights between two steps, compiles nothing, and forgets cached prefixes.

        Requests under way go on with the new weights over what the old ones have kept.
        """
        done = threading.Event()
        with self._wake:
            self._loads.append((params, done))
            self._wake.notify()
        while not done.wait(0.1):
            if self._thread is None or not self._thread.is_alive():
                message = f"the engine isn't running, so it takes no weights ({self._error or 'it was stopped'})"
                raise EngineStoppedError(message, _RETRY_SECONDS)

    def drain(self, seconds: float) -> bool:
        """Refuses new requests and waits for the others; returns whether all ended in time."""
        until = time.monotonic() + seconds
        with self._wake:
            self._is_draining = True
            while self._ids and time.monotonic() < until:
                self._wake.wait(min(0.1, max(0.0, until - time.monotonic())))
            return not self._ids

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

    def _take_in(self) -> bool:
        """Takes in what was asked for since the last step, waiting for it if there is nothing to do; False to stop."""
        with self._wake:
            while not (self._submitted or self._cancelled or self._loads or self._is_stopping) and self._core.is_idle:
                self._wake.wait()
            if self._is_stopping:
                return False
            submitted, cancelled, loads = list(self._submitted), list(self._cancelled), list(self._loads)
            self._submitted.clear()
            self._cancelled.clear()
            self._loads.clear()
        for request, on_output in submitted:
            self._core.add(request, self._until_finished(on_output))
        for request_id in cancelled:
            self._core.cancel(request_id)
        for params, done in loads:
            self._core.forget_prefixes()
            self._programs.load(params)
            done.set()
        return True

    def _until_finished(self, on_output: OnOutput) -> OnOutput:
        def tell(output: Output) -> None:
            raised = True
            try:
                on_output(output)
                raised = False
            finally:
                # After the caller knows: who waits for the last request's end may look at its answer then.
                if raised or output.finish_reason is not None:
                    with self._wake:
                        self._ids.discard(output.request_id)
                        self._wake.notify_all()

        return tell

    def _end(self, reason: str) -> None:
        """Ends all requests; those that were never taken in too."""
        with self._wake:
            self._is_stopping = True
            submitted = list(self._submitted)
            self._submitted.clear()
        core = self._core
        for request, on_output in submitted:
            core.add(request, self._until_finished(on_output))
        core.end(reason, self._error)


def _for_few_rows(environment: Environment) -> Environment:
    """Returns the environment for programs that multiply a few rows with each weight."""
    return dataclasses.replace(environment, plan=dataclasses.replace(environment.plan, few_rows=True))
