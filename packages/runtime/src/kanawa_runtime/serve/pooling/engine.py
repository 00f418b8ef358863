"""Pools texts for many requests at once: those of about one length are read together, each padded to a few lengths."""

from concurrent.futures import Future
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.contracts import CausalLM, RepresentsText
from kanawa.errors import UsageError
from kanawa.module import functional

from kanawa_runtime.runs.open_run import OpenedRun
from kanawa_runtime.serve.engine.batching import BatchingEngine
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.request import EngineLimits, RequestError

#: What becomes of a text's stream: its first token, its last, the mean of all, or the logits of the model's labels.
Pooling = Literal["first", "last", "mean", "labels"]
#: Rows of a program beside one, and the shortest texts: lengths are powers of two, so that few programs are compiled.
_MOST_ROWS, _SHORTEST = 16, 32
#: Tokens of a text, unless the config says, or the model can't.
_LONGEST = 2048


class PoolingEngine(BatchingEngine[tuple[np.ndarray, np.ndarray], np.ndarray]):
    """An `Engine`: `pool` returns a text's vector. Clients take turns in each batch.

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
        limits = EngineLimits(
            max_sequences=rows, max_length=length, max_queued=queued, vocab_size=model.config.vocab_size, max_logprobs=0
        )
        self._model, self._environment = model, opened.environment
        self._program = jax.jit(self._pooled)
        super().__init__(limits, opened.params, opened.state)

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

    def compile_all(self) -> None:
        """Compiles the programs of all lengths."""
        for bucket in self._buckets():
            for rows in {1, self._limits.max_sequences}:
                self.answer([(np.zeros(1, np.int32), np.zeros(1, np.int32))] * rows, bucket)

    def pool(self, ids: np.ndarray, types: np.ndarray, client: str = "") -> "Future[np.ndarray]":
        """Returns the future vector of a text, fp32; raises QueueFullError, and RequestError for too long a text."""
        if not 0 < len(ids) <= self._limits.max_length:
            message = f"the text has {len(ids):,} tokens, expected 1 to {self._limits.max_length:,}"
            raise RequestError(message, "input")
        bucket = next(size for size in self._buckets() if len(ids) <= size)
        return self.queue((ids, types), bucket, client)

    def _buckets(self) -> list[int]:
        sizes, size = [], _SHORTEST
        while size < self._limits.max_length:
            sizes.append(size)
            size *= 2
        return [*sizes, self._limits.max_length]

    def answer(self, items: list[tuple[np.ndarray, np.ndarray]], bucket: int) -> list[np.ndarray]:
        """Returns the vectors of ids with their types."""
        rows = 1 if len(items) == 1 else self._limits.max_sequences
        ids, kinds = np.zeros((rows, bucket), np.int32), np.zeros((rows, bucket), np.int32)
        lengths = np.ones(rows, np.int32)
        for row, (text, kind) in enumerate(items):
            ids[row, : len(text)], kinds[row, : len(text)], lengths[row] = text, kind, len(text)
        with self._environment.active():
            vectors = self._program(self._params, self._state, ids, lengths, kinds)
        return list(np.asarray(vectors)[: len(items)])
