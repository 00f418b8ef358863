"""Pools texts for many requests at once: those of about one length are read together, each padded to a few lengths."""

import collections
import dataclasses
import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.contracts import CausalLM, RepresentsText
from kanawa.errors import UsageError
from kanawa.module import functional

from kanawa_runtime.runs.open_run import OpenedRun
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.request import (
    EngineLimits,
    EngineStoppedError,
    OnOutput,
    QueueFullError,
    Request,
    RequestError,
)

logger = logging.getLogger(__name__)

#: What becomes of a text's stream: its first token, its last, the mean of all, or the logits of the model's labels.
Pooling = Literal["first", "last", "mean", "labels"]
#: Rows of a program beside one, and the shortest texts: lengths are powers of two, so that few programs are compiled.
_MOST_ROWS, _SHORTEST = 16, 32
#: Tokens of a text, unless the config says, or the model can't.
_LONGEST = 2048
_RETRY_SECONDS = 1.0


@dataclasses.dataclass
class _Waiting:
    """A text, its tokens' types, and its future vector."""

    ids: np.ndarray
    types: np.ndarray
    bucket: int
    answer: "Future[np.ndarray]"


class PoolingEngine:
    """An `Engine` that generates nothing: `pool` returns a text's vector. Clients take turns in each batch.

    A vector depends on its text alone, to rounding: rows of a batch don't see each other, and padding is masked.
    """

    def __init__(self, opened: OpenedRun, config: EngineConfig, pooling: Pooling | None = None) -> None:
        """Takes an opened model; raises UsageError for one that can't be pooled so."""
        model: Any = opened.trainer.model
        if not isinstance(model, RepresentsText):
            kind = type(model).__qualname__
            message = f"{opened.directory}: {kind} gives no vectors of texts; expected an encoder or a decoder"
            raise UsageError(message)
        self.labels = type(model).labels_of(model.config)
        if self.labels is not None and self.labels.place == "tokens":
            message = f"{opened.directory} labels tokens, which isn't served; texts with one label each are"
            raise UsageError(message)
        default: Pooling = "labels" if self.labels is not None else "last" if isinstance(model, CausalLM) else "first"
        self.pooling: Pooling = pooling or default
        if self.pooling == "labels" and self.labels is None:
            message = f"{opened.directory} has no labels: pool its vectors with first, last or mean"
            raise UsageError(message)
        self._place = self.labels.place if self.pooling == "labels" and self.labels is not None else self.pooling
        longest = model.longest_sequence() or _LONGEST
        length = min(config.max_length or _LONGEST, longest)
        queued, rows = config.max_queued, min(_MOST_ROWS, config.max_sequences)
        self._limits = EngineLimits(
            max_sequences=rows, max_length=length, max_queued=queued, vocab_size=model.config.vocab_size, max_logprobs=0
        )
        self._model, self._environment = model, opened.environment
        self._params, self._state = opened.params, opened.state
        self._program = jax.jit(self._pooled)
        self._waiting: dict[str, collections.deque[_Waiting]] = {}
        self._count = self._running = self._read = 0
        self._changed = threading.Condition()
        self._draining = self._stopped = False
        self._thread = threading.Thread(target=self._work, name="kanawa-pooling", daemon=True)

    def _pooled(self, params: Any, state: Any, ids: jax.Array, lengths: jax.Array, types: jax.Array) -> jax.Array:
        model, place = self._model, self._place
        there = jnp.arange(ids.shape[1], dtype=jnp.int32)[None] < lengths[:, None]
        states, _ = functional(model, "states")(params, state, ids, there.astype(jnp.int32), types)
        if place == "mean":
            weights = there.astype(jnp.float32)[..., None]
            total = jnp.sum(jnp.where(there[..., None], states.astype(jnp.float32), 0.0), axis=1)
            vectors: jax.Array = total / jnp.sum(weights, axis=1)
        else:
            at = jnp.zeros_like(lengths) if place == "first" else lengths - 1
            vectors = jnp.take_along_axis(states, at[:, None, None], axis=1)
            if self.pooling == "labels":
                vectors, _ = functional(model, "label_logits")(params, state, vectors)
            vectors = vectors[:, 0]
        return vectors.astype(jnp.float32)

    @property
    def is_alive(self) -> bool:
        """As `Engine`."""
        return self._thread.is_alive()

    @property
    def limits(self) -> EngineLimits:
        """As `Engine`; `max_length` is that of a text."""
        return self._limits

    def start(self) -> None:
        """Compiles the programs of all lengths and begins."""
        for bucket in self._buckets():
            for rows in {1, self._limits.max_sequences}:
                self._run([np.zeros(1, np.int32)] * rows, [np.zeros(1, np.int32)] * rows, bucket)
        self._thread.start()

    def pool(self, ids: np.ndarray, types: np.ndarray, client: str = "") -> "Future[np.ndarray]":
        """Returns the future vector of a text, fp32; raises QueueFullError, and RequestError for too long a text."""
        if not 0 < len(ids) <= self._limits.max_length:
            message = f"the text has {len(ids):,} tokens, expected 1 to {self._limits.max_length:,}"
            raise RequestError(message, "input")
        bucket = next(size for size in self._buckets() if len(ids) <= size)
        one = _Waiting(ids, types, bucket, Future())
        with self._changed:
            self._check_room()
            self._waiting.setdefault(client, collections.deque()).append(one)
            self._count += 1
            self._changed.notify_all()
        return one.answer

    def check_room(self) -> None:
        """As `Engine`."""
        with self._changed:
            self._check_room()

    def submit(self, request: Request, on_output: OnOutput) -> None:
        """Raises RequestError: it generates nothing."""
        message = "this model embeds and labels texts, and generates none"
        raise RequestError(message, "model")

    def cancel(self, request_id: str) -> None:
        """Does nothing: there are no such requests."""

    def stats(self) -> Mapping[str, float]:
        """As `Engine`."""
        with self._changed:
            return {
                "num_requests_running": float(self._running),
                "num_requests_waiting": float(self._count),
                "num_texts_total": float(self._read),
            }

    def load(self, params: object, state: object = None) -> None:
        """As `Engine`."""
        with self._changed:
            self._params = params
            self._state = self._state if state is None else state

    def drain(self, seconds: float) -> bool:
        """As `Engine`."""
        end = time.monotonic() + seconds
        with self._changed:
            self._draining = True
            while self._count or self._running:
                if not self._changed.wait(max(0.0, end - time.monotonic())):
                    return False
        return True

    def stop(self) -> None:
        """As `Engine`; what waits fails."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _buckets(self) -> list[int]:
        sizes, size = [], _SHORTEST
        while size < self._limits.max_length:
            sizes.append(size)
            size *= 2
        return [*sizes, self._limits.max_length]

    def _check_room(self) -> None:
        if self._stopped:
            message = "the engine was stopped"
            raise EngineStoppedError(message, _RETRY_SECONDS)
        if self._draining or self._count >= self._limits.max_queued:
            message = f"{self._count} texts wait already, as many as may (engine.max_queued), or the server stops"
            raise QueueFullError(message, _RETRY_SECONDS)

    def _next(self) -> list[_Waiting]:
        """Returns texts of one bucket, of each client in turn: the longest-waiting client's first text says which."""
        chosen: list[_Waiting] = []
        found = True
        while found and len(chosen) < self._limits.max_sequences:
            found = False
            for client in list(self._waiting):
                waiting = self._waiting[client]
                if len(chosen) < self._limits.max_sequences and waiting[0].bucket == (chosen or waiting)[0].bucket:
                    chosen.append(waiting.popleft())
                    found = True
                    del self._waiting[client]
                    if waiting:
                        self._waiting[client] = waiting  # behind all others
        self._count -= len(chosen)
        return chosen

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._count and not self._stopped:
                    self._changed.wait()
                left = [one for waiting in self._waiting.values() for one in waiting]
                batch = [] if self._stopped else self._next()
                self._running = len(batch)
            if not batch:
                for one in left:
                    one.answer.set_exception(EngineStoppedError("the engine was stopped", _RETRY_SECONDS))
                return
            try:
                vectors = self._run([one.ids for one in batch], [one.types for one in batch], batch[0].bucket)
                for one, vector in zip(batch, vectors, strict=True):
                    one.answer.set_result(vector)
            except Exception as error:
                logger.exception("a batch of %d texts failed", len(batch))
                for one in batch:
                    if not one.answer.done():
                        one.answer.set_exception(error)
            with self._changed:
                self._running, self._read = 0, self._read + len(batch)
                self._changed.notify_all()

    def _run(self, texts: list[np.ndarray], types: list[np.ndarray], bucket: int) -> np.ndarray:
        rows = 1 if len(texts) == 1 else self._limits.max_sequences
        ids, kinds = np.zeros((rows, bucket), np.int32), np.zeros((rows, bucket), np.int32)
        lengths = np.ones(rows, np.int32)
        for row, (text, kind) in enumerate(zip(texts, types, strict=True)):
            ids[row, : len(text)], kinds[row, : len(text)], lengths[row] = text, kind, len(text)
        with self._environment.active():
            vectors = self._program(self._params, self._state, ids, lengths, kinds)
        return np.asarray(vectors)[: len(texts)]
