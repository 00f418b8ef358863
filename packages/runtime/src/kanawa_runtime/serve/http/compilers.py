"""Threads for grammars: quick ones take turns, and slow ones continue beside them."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from kanawa_runtime.serve.http.errors import unavailable

Result = TypeVar("Result")
#: Nearly every grammar is compiled by then; the others leave their turn to the next one.
_QUICK_SECONDS = 0.25
_RETRY_SECONDS = 5.0


class Compilers:
    """Compiling a grammar can't be interrupted, so a slow one never blocks the others.

    `at_once` are compiled at a time; one that takes longer than a moment no longer counts among them, but among the
    slow ones, of which there may be `most_slow`.
    """

    def __init__(self, at_once: int, most_slow: int) -> None:
        self._turns = asyncio.Semaphore(at_once)
        self._most_slow = most_slow
        self._slow = 0

    async def run(self, work: Callable[..., Result], *arguments: Any, seconds: float) -> Result:
        """Returns what `work` does; raises TimeoutError, and the 503 where too many slow ones run."""
        if self._slow >= self._most_slow:
            message = f"{self._slow} structured outputs take long to compile, as many as may (max_slow_grammars)"
            raise unavailable(message, _RETRY_SECONDS, "grammars_busy")
        async with self._turns:
            task = asyncio.wrap_future(_in_thread(work, *arguments))
            # The client may leave before it is done, and its exception is unread then.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            try:
                await asyncio.wait((task,), timeout=min(_QUICK_SECONDS, seconds))
            finally:
                if not task.done():
                    self._slow += 1
                    task.add_done_callback(self._one_less)
        async with asyncio.timeout(max(0.0, seconds - _QUICK_SECONDS)):
            return await asyncio.shield(task)

    def _one_less(self, _: Any) -> None:
        self._slow -= 1


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
