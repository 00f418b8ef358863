"""Engines that answer requests in batches, without tokens that come one by one: a queue, turns of clients, a thread."""

import abc
import collections
import dataclasses
import logging
import threading
import time
from collections.abc import Hashable, Mapping
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from kanawa_runtime.serve.engine.request import EngineLimits, EngineStoppedError, QueueFullError

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
#: How long a thread that was asked to end may take for what it runs; it is a daemon, so the process can end anyway.
_END_SECONDS = 60.0
Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclasses.dataclass
class _Waiting(Generic[Item, Answer]):
    item: Item
    bucket: Hashable
    answer: "Future[Answer]"


def end_thread(thread: threading.Thread | None) -> None:
    """Waits until an engine's thread, which was asked to end, has ended; after a minute an error is logged."""
    if thread is None or not thread.is_alive():
        return
    thread.join(_END_SECONDS)
    if thread.is_alive():
        logger.error(
            "%s hasn't ended within %g s of being asked to: what it runs hangs, and its requests get no end; end the "
            "process", thread.name, _END_SECONDS,
        )  # fmt: skip


class BatchingEngine(abc.ABC, Generic[Item, Answer]):
    """An `Engine` that answers items of one bucket together, at most `max_sequences`. Clients take turns in a batch."""

    def __init__(self, limits: EngineLimits, params: Any, state: Any) -> None:
        """Takes the sizes, and the weights that `load` replaces."""
        self._limits, self._params, self._state = limits, params, state
        self._waiting: dict[str, collections.deque[_Waiting[Item, Answer]]] = {}
        self._count = self._running = self._read = 0
        self._changed = threading.Condition()
        self._draining = self._stopped = False
        self._thread = threading.Thread(target=self._work, name="kanawa-batches", daemon=True)

    @abc.abstractmethod
    def compile_all(self) -> None:
        """Compiles the programs of all buckets."""

    @abc.abstractmethod
    def answer(self, items: list[Item], bucket: Any) -> list[Answer]:
        """Returns the answers to items of one bucket; runs on the engine's thread."""

    def queue(self, item: Item, bucket: Hashable, client: str) -> "Future[Answer]":
        """Returns the future answer to an item; raises QueueFullError."""
        one: _Waiting[Item, Answer] = _Waiting(item, bucket, Future())
        with self._changed:
            self._check_room()
            self._waiting.setdefault(client, collections.deque()).append(one)
            self._count += 1
            self._changed.notify_all()
        return one.answer

    @property
    def is_alive(self) -> bool:
        """As `Engine`."""
        return self._thread.is_alive()

    @property
    def limits(self) -> EngineLimits:
        """As `Engine`; `max_length` is that of one item."""
        return self._limits

    def start(self, *, compiles: bool = True) -> None:
        """Begins; with `compiles`, once all programs are compiled: otherwise each is when it is first needed."""
        if compiles:
            self.compile_all()
        self._thread.start()

    def check_room(self) -> None:
        """As `Engine`."""
        with self._changed:
            self._check_room()

    def stats(self) -> Mapping[str, float]:
        """As `Engine`."""
        with self._changed:
            return {
                "num_requests_running": float(self._running),
                "num_requests_waiting": float(self._count),
                "num_items_total": float(self._read),
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
        end_thread(self._thread)

    def _check_room(self) -> None:
        if self._stopped:
            message = "the engine was stopped"
            raise EngineStoppedError(message, _RETRY_SECONDS)
        if self._draining or self._count >= self._limits.max_queued:
            message = f"{self._count} wait already, as many as may (engine.max_queued), or the server stops"
            raise QueueFullError(message, _RETRY_SECONDS)

    def _next(self) -> list[_Waiting[Item, Answer]]:
        """Returns items of one bucket, of each client in turn: the longest-waiting client's first one says which."""
        chosen: list[_Waiting[Item, Answer]] = []
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
                answers = self.answer([one.item for one in batch], batch[0].bucket)
                for one, answer in zip(batch, answers, strict=True):
                    one.answer.set_result(answer)
            except Exception as error:
                logger.exception("a batch of %d failed", len(batch))
                for one in batch:
                    if not one.answer.done():
                        one.answer.set_exception(error)
            with self._changed:
                self._running, self._read = 0, self._read + len(batch)
                self._changed.notify_all()
